"""Headers for code that sends a request itself, so that the server's side joins the trace."""

from __future__ import annotations

from llmtrace.runtime.runtime import enclosing

__all__ = ["trace_headers"]


def trace_headers() -> dict[str, str]:
    """Return the headers to send with a request made in a decorated function, by lower-case name.

    `traceparent` (and `tracestate`, if there is one) makes the server's spans children of the
    request, `x-request-id` names it in the server's logs. Recorded calls over HTTP and gRPC send
    them by themselves. For all else: HTTP clients that are not recorded, a queue, and a message
    over a WebSocket, whose handshake serves many requests.

    Outside a request that is being recorded the mapping is empty.

    Example:
        >>> import llmtrace
        >>> from llmtrace.testing import capture
        >>> @llmtrace.trace
        ... def ask():
        ...     return trace_headers()
        >>> with capture() as rows:
        ...     sent = ask()
        >>> sent["x-request-id"] == rows[0].request_id, trace_headers()
        (True, {})
    """
    recording = enclosing()
    if recording is None or recording.ended:
        return {}
    headers = {"traceparent": recording.span.traceparent}
    if recording.span.tracestate:
        headers["tracestate"] = recording.span.tracestate
    return {**headers, "x-request-id": recording.info["request_id"]}
