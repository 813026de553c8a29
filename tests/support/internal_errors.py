"""Start a test as a process starts: without any internal error."""

from llmtrace.core import failopen


def reset_internal_errors() -> None:
    """Forget all counts, so that each kind is logged again."""
    with failopen._lock:
        failopen._counts.clear()
        failopen._misused.clear()
