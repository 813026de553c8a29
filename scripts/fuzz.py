"""Look for bytes that break a parser, led by what of its code they reach: with atheris.

    python -m pip install --editable . --group fuzz
    python scripts/fuzz.py test_any_headers -max_total_time=60

The properties are those of `tests/fuzz/test_parsers.py` and `tests/browser/test_beacon.py`; what
is found is printed as hypothesis shows it. Further arguments are libFuzzer's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the tests are no package

with atheris.instrument_imports(include=["llmtrace"]):
    from tests.browser import test_beacon
    from tests.fuzz import test_parsers

PROPERTIES = {
    name: getattr(module, name)
    for module in (test_parsers, test_beacon)
    for name in vars(module)
    if name.startswith("test_") and hasattr(getattr(module, name), "hypothesis")
}


def main() -> None:
    """Fuzz the property that is named."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in PROPERTIES:
        sys.exit(f"usage: fuzz.py PROPERTY [libFuzzer's arguments]; one of {[*PROPERTIES]}")
    try_one = PROPERTIES[name].hypothesis.fuzz_one_input
    atheris.Setup([sys.argv[0], *sys.argv[2:]], try_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
