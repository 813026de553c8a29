"""Serve one request that is not an HTTP request of its own: over gRPC, or as a WebSocket message.

It opens the server side of the client's trace, measures the self time of this process up to the
first content it sends, and makes that available to send to the client.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry import context as otel_context

from llmtrace.core.error_outcomes import outcome_of, outcome_of_status
from llmtrace.core.failopen import fails_open, internal_error
from llmtrace.core.row_fields import WIRE_NAMES
from llmtrace.core.span import Span
from llmtrace.gateway import parent_trace
from llmtrace.gateway.timing_header import cached, spent, timing_entries
from llmtrace.instrumentation.headers.server_timing import Entry, write
from llmtrace.runtime import proxied_request
from llmtrace.runtime.proxied_request import ProxiedRequest
from llmtrace.runtime.runtime import Runtime, current
from llmtrace.runtime.trace_context import TraceContext
from llmtrace.semconv.attributes import GATEWAY

_NS: Final = 1_000_000_000
# The headers that carry a request's trace context and its id.
CARRIED: Final = ("traceparent", "tracestate", "baggage", "x-request-id")
_MAX_LENGTH: Final = 8192


class MessageRequest:
    """One request, from its receipt to the end of its response.

    Args:
        runtime: what `init` set up.
        carried: what came along with it, of `CARRIED`, by lower-case name.
        name: what this gateway goes by.
        span: the span's name.
        attributes: of the span.

    Attributes:
        relay: its time, and what the application reports of it.
        unsure: whether the time of its first content cannot be observed.
    """

    def __init__(
        self,
        runtime: Runtime,
        carried: Mapping[str, str],
        *,
        name: str,
        span: str,
        attributes: Mapping[str, Any],
    ) -> None:
        self.relay = ProxiedRequest(runtime.clock, "")
        self._runtime = runtime
        self._name = name
        self._span = span
        self._attributes = dict(attributes)
        self._started = runtime.wall()
        self._server = parent_trace.opened(runtime, carried, span, self._started)
        self.relay.request_id = parent_trace.request_id(
            carried.get("x-request-id"), self._server.identity
        )
        self._ended = False
        self.unsure = False

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Make the request current for the code inside, and hide a client's recording."""
        tokens = current.set(None), proxied_request.current.set(self.relay)
        context = self._server.identity.context
        attached = None if context is None else otel_context.attach(context)
        try:
            yield
        finally:
            if attached is not None:
                otel_context.detach(attached)
            proxied_request.current.reset(tokens[1])
            current.reset(tokens[0])

    def sends(self) -> None:
        """Note that the first content goes out; only the first call does anything."""
        if self.relay.spent is None:
            self.relay.finalize(self.relay.clock())

    def timing(self) -> str:
        """Return the timing for the client so far, as a `Server-Timing` header's value."""
        try:
            return write(self.entries())
        except Exception as error:  # noqa: BLE001 - the response goes out without
            internal_error("gateway", error)
            return ""

    def entries(
        self, passed_on: Collection[str | None] = (), *, sure: bool = False
    ) -> Iterator[Entry]:
        """Yield the timing for the client so far; for `passed_on` see `timing_entries`.

        `sure`: the process's own time is known even if no upstream call was seen.
        """
        known = sure or self.own_time_known
        own = spent(self.relay, self.relay.clock()).own if known else None
        return timing_entries(self.relay, self._name, self.identity.span_id, own, passed_on)

    @property
    def identity(self) -> TraceContext:
        """The trace context of the request's span."""
        return self._server.identity

    @property
    def shared(self) -> bool:
        """Whether its span is an enclosing one, which the code that opened it ends."""
        return self._server.enclosing is not None

    @property
    def own_time_known(self) -> bool:
        """Whether the process's self time can be separated from its waiting."""
        return not self.unsure and (self.relay.seen or bool(cached(self.relay)))

    @fails_open("gateway")
    def ends(
        self,
        error: BaseException | None = None,
        attributes: Mapping[str, Any] | None = None,
        failure: str | None = None,
        *,
        left: bool = False,
    ) -> None:
        """Write the span; only the first call does.

        Args:
            error: what was raised.
            attributes: what is known of the response.
            failure: the status that the response failed with, where that is known.
            left: whether the client has disconnected.
        """
        outcome, error_type = ("success", None) if error is None else outcome_of(error)
        if left:
            outcome, error_type = "cancelled", None
        elif failure is not None:
            outcome, error_type = outcome_of_status(failure)
        self.writes(outcome, error_type, attributes or {})

    def writes(
        self,
        outcome: str,
        error_type: str | None,
        attributes: Mapping[str, Any],
        *,
        span: str | None = None,
        sure: bool = False,
    ) -> None:
        """Write the span, by what is known of the response; only the first call does anything.

        Args:
            outcome: how it ended.
            error_type: what was raised, or the status it failed with.
            attributes: of the span.
            span: its name, where it is better known by now.
            sure: whether the process's own time is known even if no upstream call was seen.
        """
        if self._ended:
            return
        self._ended = True
        relay = self.relay
        now = relay.clock()
        relay.finalize(now)
        parts = spent(relay, now)
        known: dict[str, Any] = {
            "name": self._name,
            "own": parts.own / _NS if sure or self.own_time_known else None,
            "upstream": parts.upstream / _NS if relay.seen else None,
            "caller": parts.caller / _NS if parts.caller else None,
            "calls": len(relay.calls) + len(relay.blind),
            "cache_hit": cached(relay),
            "cache_kind": relay.cache_kind,
            "request_id": relay.request_id,
            "outcome": outcome,
            "error_type": error_type,
        }
        noted = {line.name: known.get(line.field) for line in GATEWAY}
        fields = {
            WIRE_NAMES[name]: value for name, value in relay.fields.items() if name in WIRE_NAMES
        }
        finished = Span(
            name=span or self._span,
            kind="server",
            trace_id=self.identity.trace_id,
            span_id=self.identity.span_id,
            parent_span_id=self.identity.parent_span_id,
            service=self._runtime.service,
            start=self._started,
            duration_ns=now - relay.start,
            attributes={
                **self._attributes,
                **attributes,
                **relay.attributes,
                **fields,
                **{name: value for name, value in noted.items() if value is not None},
            },
            error=error_type,
        )
        parent_trace.closed(self._runtime, self._server, finished)


def carried(*carriers: Any) -> dict[str, str]:
    """Return the headers that carry a request's trace context and its id.

    Of what it came with, the closest first: mappings, and whatever else came in the place of one.
    """
    found: dict[str, str] = {}
    for carrier in carriers:
        if not isinstance(carrier, Mapping):
            continue
        headers = {
            name: value[:_MAX_LENGTH]
            for name in CARRIED
            if isinstance(value := carrier.get(name), str) and value
        }
        if "traceparent" in found:  # what belongs to it comes from where that came from
            headers = {name: value for name, value in headers.items() if name == "x-request-id"}
        found = {**headers, **found}
    return found
