"""Set the headers of a request, and read those of its response, between client and engine.

Out go `traceparent` and `x-request-id`, the join keys. Back come the gateways' own times, queue
and prefill where a server reports them, and the headers that are kept. Headers are untrusted: read
within bounds, never raised on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from llmtrace.core.recording import Recording
from llmtrace.core.sanitize import printable
from llmtrace.core.stages import EngineFigures, Reported, Source, reported
from llmtrace.instrumentation.headers import cache_hits, gateway_time
from llmtrace.instrumentation.headers.gateway_time import Hop
from llmtrace.instrumentation.headers.kept_headers import MAX, MAX_LENGTH, worth_keeping
from llmtrace.instrumentation.headers.server_timing import Entry, entries
from llmtrace.runtime.runtime import active
from llmtrace.runtime.trace_context import TO_ALL

_MAX_BYTES: Final = 4096
_MAX_NAMES: Final = 512
_MAX_NAME: Final = 128
_NS_PER_MS: Final = 1_000_000
# Stages that a server may report of its engine.
_ENGINE: Final = ("queue", "prefill", "decode")
_MAX_HOPS: Final = 32
_INSIDE: Final = "="  # before the name of a gateway that reports inside the answer

# Sent to one's own hosts alone, to say that llmtrace reads the response: a gateway with llmtrace
# may then report in comments of the stream what it learns after its headers have left.
ACCEPT: Final = "X-Llmtrace-Accept"
COMMENTS: Final = "timing-comments"
_EVENTS: Final = "text/event-stream"
_SERVER: Final = frozenset({"server"})  # what most responses have, of all that is read
# An entry of such a comment: another one may follow.
MORE: Final = "more"

# By a header's name as it came over the wire: its name in lower case, and whether it is kept;
# `None` = of no interest. Filled as names are seen, so that each takes one look-up.
_read_as: dict[bytes, tuple[str, bool] | None] = {}


def outgoing(
    recording: Recording, already: Mapping[str, object], host: str = "", *, parsed: bool = False
) -> dict[str, str]:
    """Return the headers to set on a request so that the server's side can be joined to it.

    A `traceparent` or `x-request-id` the application sets stays; the latter becomes the row's id.
    Only where a `traceparent` names the row's own parent, as of another instrumentation of the
    same call, the row's span takes its place: it lies between the two.

    Args:
        recording: of the request.
        already: the headers it has.
        host: the receiver; the header policy given to `init` decides.
        parsed: whether its stream is read by a client that knows all of an event stream, comments
            too; also assumed if `Accept` requests one. Other parsers may know `data:` alone.
    """
    runtime, span = active(), recording.span
    policy = TO_ALL if runtime is None else runtime.headers
    lowered = {name.lower(): value for name, value in already.items()}
    added = {}
    given = lowered.get("x-request-id")
    named = isinstance(given, str) and bool(given)
    if named:
        recording.info["request_id"] = given
    skips_comments = parsed or _EVENTS in str(lowered.get("accept", ""))
    if skips_comments and policy.sent != "none" and policy.is_own(host):
        added[ACCEPT] = COMMENTS
    if not policy.joins(host):
        return added
    parent = lowered.get("traceparent")
    if parent is None or (
        span.parent_span_id is not None
        and str(parent).startswith(f"00-{span.trace_id}-{span.parent_span_id}-")
    ):
        added["traceparent"] = span.traceparent
        if span.tracestate and "tracestate" not in lowered:
            added["tracestate"] = span.tracestate
    if not named:
        added["X-Request-Id"] = recording.info["request_id"]
    return added


def answered(recording: Recording, raw: Iterable[tuple[bytes, bytes]], *, ok: bool) -> bool:
    """Note what a response's raw headers report, in place of those of an earlier response.

    Return whether a gateway may report more in comments of the response, if that is an event
    stream.

    Args:
        recording: of the request.
        raw: names and values as they came; of a value, 4 KiB are looked at.
        ok: whether the response is no error. Of an error only kept headers are noted: its time is
            a failed attempt's as a whole.
    """
    read: dict[str, str] = {}
    kept: dict[str, str] = {}
    for sent, value in raw:
        try:
            known = _read_as[sent]
        except KeyError:
            known = _look_at(sent)
        if known is None:
            continue
        name, keep = known
        text = value[:_MAX_BYTES].decode("latin-1")
        if name in read:  # repeated: one header, separated by commas
            text = f"{read[name]}, {text}"
        read[name] = text
        if keep and (len(kept) < MAX or name in kept):
            kept[name] = printable(text[:MAX_LENGTH])
    for name in ("x-request-id", "request-id"):
        if name in kept and kept[name] == recording.info.get("request_id"):
            del kept[name]  # an echo reports nothing
    recording.info["response_headers"] = kept
    if ok:
        return incoming(recording, read)
    recording.no_gateway_seen, recording.gateway, recording.hops = False, None, {}
    return False


def _look_at(sent: bytes) -> tuple[str, bool] | None:
    name = sent.lower().decode("latin-1")
    keep = worth_keeping(name)
    read = name in gateway_time.NAMES or name in cache_hits.NAMES
    known = (name, keep) if keep or read else None
    if len(_read_as) < _MAX_NAMES and len(sent) <= _MAX_NAME:
        _read_as[sent] = known
    return known


def retry_after(recording: Recording) -> int | None:
    """Return the backoff that the last response requests of its client, in nanoseconds.

    A date is not read: it is by another machine's clock.
    """
    kept = recording.info.get("response_headers", {})
    for name, unit in (("retry-after-ms", _NS_PER_MS), ("retry-after", 1000 * _NS_PER_MS)):
        try:
            backoff = reported(float(kept[name]), unit, "server_timing")
        except (KeyError, ValueError):
            continue
        if backoff is not None:
            return backoff.ns
    return None


def incoming(recording: Recording, headers: Mapping[str, str]) -> bool:
    """Note what a response's headers, by lower-case name, report of where its time went.

    Return whether a gateway may report more in comments of the response.
    """
    before = recording.hops
    recording.gateway, recording.hops = None, {}
    if headers.keys() <= _SERVER and not before:  # as with most responses: known already
        recording.no_gateway_seen, gateway = gateway_time.by_server(headers.get("server", ""))
        if not gateway:
            return False
    recording.no_gateway_seen = gateway_time.engine_itself(headers)
    if recording.no_gateway_seen:
        return False
    timing_header = headers.get("server-timing")
    timing = () if timing_header is None else tuple(entries(timing_header))
    more = False
    for number, hop in enumerate(gateway_time.hops(headers, timing)):
        more = more or hop.id is not None
        recording.hops.setdefault(hop.id or f"#{number}", hop)
    if recording.hops or before:
        _gateways(recording, before)
    _servers(recording, headers, timing)
    return more


def commented(recording: Recording, text: str) -> bool:
    """Note what a gateway's comment in the event stream reports; return whether more may follow.

    Its own time, which takes the place of what its headers said, and what it learnt of the engine.
    """
    timing, before = tuple(entries(text)), dict(recording.hops)
    for hop in gateway_time.hops({}, timing):
        known = hop.id in recording.hops
        if hop.id is not None and (known or len(recording.hops) < _MAX_HOPS):
            recording.hops[hop.id] = hop
    _gateways(recording, before)
    _servers(recording, {}, timing)
    return any(entry.name == MORE for entry in timing)


def inside(recording: Recording, name: str, ns: int) -> None:
    """Note the self time, in nanoseconds, that a gateway reports of itself inside the answer."""
    before = dict(recording.hops)
    recording.hops[_INSIDE + name] = Hop(name, ns)
    _gateways(recording, before)


def _gateways(recording: Recording, before: Mapping[str, Hop]) -> None:
    """Add up the self times that gateways reported, and name the gateways."""
    times_ns = [hop.ns for hop in recording.hops.values() if hop.ns is not None]
    answered = all(key.startswith(_INSIDE) for key in recording.hops)
    source: Source = "engine_inband" if answered else "server_timing"
    recording.gateway = Reported(sum(times_ns), source) if times_ns else None
    name, given = _named(recording.hops), recording.info.get("gateway")
    # The application's own name for it wins.
    if name is not None and (given is None or given == _named(before)):
        recording.info["gateway"] = name


def _named(hops: Mapping[str, Hop]) -> str | None:
    if len(hops) == 1:
        [only] = hops.values()
        return only.name
    names = dict.fromkeys(hop.name for hop in hops.values() if hop.name is not None)
    return ",".join(names)[:_MAX_NAME] or None


def _servers(recording: Recording, headers: Mapping[str, str], timing: Sequence[Entry]) -> None:
    """Note what is reported of a cache or an engine behind the gateways."""
    if timing or not cache_hits.NAMES.isdisjoint(headers):
        hit = cache_hits.hit(headers, timing)
        if hit is not None:
            recording.info["cache_hit"] = hit
    if not timing:
        return
    # The first report is by the gateway in front, and includes all behind it.
    reported_ns = {
        entry.name: Reported(entry.ns, "server_timing")
        for entry in reversed(timing)
        if entry.ns is not None
    }
    queue, prefill, decode = map(reported_ns.get, _ENGINE)
    if queue is not None or prefill is not None or decode is not None:
        recording.add_engine_figures(EngineFigures(queue=queue, prefill=prefill, decode=decode))
