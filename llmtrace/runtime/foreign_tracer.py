"""Another SDK in the same process that records the same calls: what llmtrace needs of it.

Langfuse's own SDK is one. Its exporter knows how; `llmtrace.configure` registers that here.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol


class ForeignTracer(Protocol):
    """Another SDK's tracing, as far as it and llmtrace must not count one call twice."""

    def counts(self, span: Any, /) -> bool:
        """Say whether an open span is its own, and one that is counted as a call of a model."""

    def mark(self, attributes: MutableMapping[str, Any], /) -> None:
        """Note in a request's attributes that it is counted elsewhere."""

    def marked(self, attributes: Mapping[str, Any], /) -> bool:
        """Say whether `mark` has been there."""

    def count_ours(self, ours: Any, /) -> None:
        """Have a call counted once whose client has opened a span inside ours."""

    def ended(
        self, span: Any, info: Mapping[str, Any], outcome: str, error_type: str | None = None, /
    ) -> None:
        """Note on its span of a call what only llmtrace knows."""


class _Nothing:
    """Report nothing: no other SDK is active in the process."""

    def counts(self, span: Any, /) -> bool:
        del span
        return False

    def mark(self, attributes: MutableMapping[str, Any], /) -> None:
        pass

    def marked(self, attributes: Mapping[str, Any], /) -> bool:
        del attributes
        return False

    def count_ours(self, ours: Any, /) -> None:
        pass

    def ended(
        self, span: Any, info: Mapping[str, Any], outcome: str, error_type: str | None = None, /
    ) -> None:
        pass


registered: ForeignTracer = _Nothing()


def register(tracer: ForeignTracer) -> None:
    """Set the calls that are used from now on."""
    global registered  # one for the process, as SDKs patch the process
    registered = tracer
