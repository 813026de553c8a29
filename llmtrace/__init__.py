"""Seven stages of a streaming LLM request that add up exactly to what the user waited.

Three lines to start: `llmtrace.init("my-app")` once, `@llmtrace.trace` on the function around a
request, and each call becomes one row. See README.md and docs/start/first-trace.md.
"""

from llmtrace.agents.tool import tool
from llmtrace.agents.turn import turn
from llmtrace.budget import Budget
from llmtrace.configure import flush, init, shutdown
from llmtrace.core.errors import ConfigError, DataError, LlmtraceError, SourceError
from llmtrace.core.failopen import internal_errors
from llmtrace.core.row import OUTCOMES, Row
from llmtrace.core.stages import STAGES, Stages, Timeline, split
from llmtrace.exporters.row_files.read_back import read_rows
from llmtrace.instrumentation.marks import annotate, render, stage
from llmtrace.instrumentation.registry import Instrumented, instrument
from llmtrace.instrumentation.trace_decorator import trace
from llmtrace.instrumentation.wrap_stream import wrap

__version__ = "0.1.0"

__all__ = [
    "OUTCOMES",
    "STAGES",
    "Budget",
    "ConfigError",
    "DataError",
    "Instrumented",
    "LlmtraceError",
    "Row",
    "SourceError",
    "Stages",
    "Timeline",
    "annotate",
    "flush",
    "init",
    "instrument",
    "internal_errors",
    "read_rows",
    "render",
    "shutdown",
    "split",
    "stage",
    "tool",
    "trace",
    "turn",
    "wrap",
]
