"""List the names that Grafana knows: it ignores all others.

Grafana says nothing of an override, transformation or unit it does not know: it does without.
"""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from typing import Final

from grafana_foundation_sdk.models import units

UNITS: Final = frozenset(value for value in vars(units).values() if isinstance(value, str))
# Units anybody may make up.
CUSTOM_UNIT: Final = re.compile(r"(?:suffix|prefix|time|si|count|currency|bool):")

_TABLE: Final = tomllib.loads(
    files(__package__).joinpath("grafana_names.toml").read_text(encoding="utf-8")
)
TRANSFORMATIONS, MATCHERS, PROPERTIES = (
    frozenset[str](_TABLE[name].split()) for name in ("transformations", "matchers", "properties")
)
CUSTOM: Final = {panel: frozenset(names.split()) for panel, names in _TABLE["custom"].items()}
GONE: Final[dict[str, str]] = _TABLE["gone"]
