"""Send rows to Langfuse.

As generations, through its OTLP endpoint: the queue, the sender and the encoding are those of
`otlp`, with Langfuse's own attributes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmtrace.exporters.langfuse.coexistence import projects
from llmtrace.exporters.langfuse.settings import read_labels, read_project, to_otlp
from llmtrace.exporters.langfuse.span_attributes import dialect
from llmtrace.exporters.otlp.sink import span_sink

if TYPE_CHECKING:
    from llmtrace.core.row import Row
    from llmtrace.core.span import Span
    from llmtrace.exporters.queued_sink import QueuedSink


def langfuse_sink(
    *,
    interval_s: float = 1.0,
    environ: Mapping[str, str] = os.environ,
) -> QueuedSink[Row | Span]:
    """Make the sink that sends rows to the Langfuse project that the environment names.

    Where Langfuse's own SDK is at work in the same process, spans go through its provider to the
    same project, and this sink sends nothing.

    Args:
        interval_s: longest a row waits for company, in seconds.
        environ: the `LANGFUSE_*` variables; see `read_project`.

    Raises:
        ConfigError: one of them is missing or cannot be.
    """
    project = read_project(environ)

    def left_to(provider: Any) -> bool:
        return project.public_key in projects(provider)

    return span_sink(
        "export.langfuse",
        to_otlp(project, environ),
        dialect=dialect(read_labels(environ)),
        left_to=left_to,
        interval_s=interval_s,
    )
