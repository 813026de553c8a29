"""Run `llmtrace triage` and `llmtrace triage serve`."""

from __future__ import annotations

import argparse
from typing import Final

from llmtrace.cli.arguments import COLLECTOR_URL
from llmtrace.cli.extras import collector_module
from llmtrace.core.errors import ConfigError, missing_extra

# Options that each name a source of the case; `--url` is the default.
_SOURCES: Final = ("case", "url", "store", "rows", "langfuse")


def run_triage(options: argparse.Namespace) -> int:
    """Run `llmtrace triage` as its options say."""
    given = [f"--{name}" for name in _SOURCES if getattr(options, name)]
    if len(given) > 1:  # argparse checks either side of `serve` alone
        raise ConfigError(f"{' and '.join(given)} exclude each other: give one source")
    try:
        from llmtrace.triage import command
    except ImportError as error:
        raise missing_extra("llmtrace triage", "triage", error.name or "numpy") from error
    from llmtrace.triage.sources import reader

    if options.prometheus and not given and options.what != "serve":
        from llmtrace.triage.engines_alone import command as engines

        return engines.main(
            options, collector_module("scrape.from_prometheus", "llmtrace triage --prometheus")
        )
    options.url = options.url or COLLECTOR_URL

    read = reader(options, collector_module)
    if options.what == "serve":
        from llmtrace.triage.oncall import command as serving

        serving.serve(options, read)
        return 0
    return command.main(options, read)
