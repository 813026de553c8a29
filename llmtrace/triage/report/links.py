"""Build the addresses of traces and runbooks that a report links to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from llmtrace.api_clients.http_client import is_address
from llmtrace.core.errors import ConfigError

TRACE: Final = "{trace_id}"
CAUSE: Final = "{cause}"


@dataclass(frozen=True, slots=True)
class Links:
    """Where traces and runbooks are.

    Attributes:
        traces: an address with `{trace_id}` in it; `None` = ids are shown without a link.
        runbooks: an address with `{cause}` in it, or the folder of `CAUSE.md`; `None` = the report
            contains the runbooks.

    Raises:
        ConfigError: one of them is not an address.
    """

    traces: str | None = None
    runbooks: str | None = None

    def __post_init__(self) -> None:
        for option, text in (("--trace-url", self.traces), ("--runbooks", self.runbooks)):
            if text is not None and not is_address(text):
                raise ConfigError(f"{option} {text!r}: write an address, as https://…")
        if self.traces is not None and TRACE not in self.traces:
            raise ConfigError(
                f"--trace-url {self.traces!r}: write where the trace's id belongs, as "
                f"https://tempo.example.org/trace/{TRACE}"
            )

    def trace(self, trace_id: str) -> str | None:
        """Return the address of a trace."""
        return None if self.traces is None else self.traces.replace(TRACE, quote(trace_id))

    def runbook(self, cause: str) -> str | None:
        """Return the address of a cause's runbook."""
        if self.runbooks is None:
            return None
        if CAUSE in self.runbooks:
            return self.runbooks.replace(CAUSE, quote(cause))
        return f"{self.runbooks.rstrip('/')}/{quote(cause)}.md"
