"""Split the time of one request into the seven stages.

Pure code over integer nanoseconds: a `Timeline` (what was measured) goes in, `Stages` (a
partition of the user's wait, exact to the nanosecond) comes out. See docs/reference/stages.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from llmtrace.core.wire_names import wired, wired_fields

if TYPE_CHECKING:
    from dataclasses import dataclass as checked_dataclass
else:
    # Some of these are made for every request. Frozen at run time, that would take five times as
    # long, since `__init__` bypasses the freeze for each field. Type checkers enforce it instead.
    def checked_dataclass(*, frozen: bool, **options: Any) -> Any:
        """Make a dataclass that is frozen for type checkers alone, with the options of one."""
        return dataclass(unsafe_hash=frozen, **options)


StageName = Literal["network", "gateway", "queue", "prefill", "first_chunk", "decode", "render"]
STAGES: Final[tuple[StageName, ...]] = get_args(StageName)
UNATTRIBUTED: Final = "unattributed"
BEFORE_CONTENT: Final[tuple[str, ...]] = STAGES[: STAGES.index("decode")]
# What the whole of a request is divided into, in the order in which it is shown.
PARTITION: Final = (*STAGES, UNATTRIBUTED)
# The order in which spans and bars lie end to end: server time that cannot be split lies before
# the first content.
DRAWN_ORDER: Final = (
    "network", "gateway", "queue", "prefill", "first_chunk", "unattributed", "decode", "render",
)  # fmt: skip

Source = Literal[
    "client",  # a clock in this process
    "kernel",  # TCP_INFO of the live socket
    "server_timing",  # a Server-Timing or gateway header
    "engine_inband",  # engine timings inside the response itself
    "engine_span",  # the engine's own OTLP span
    "engine_plugin",  # our stat-logger plugin inside vLLM
    "engine_window",  # average of a scrape interval: approximate
    "client_bound",  # bare vLLM: response headers to first body byte
    "estimated",  # a fit over many requests: never part of a sum
]
SOURCES: Final[tuple[Source, ...]] = get_args(Source)

# With these known, what is left of the wait for the first content is `first_chunk`.
_ENGINE: Final[frozenset[StageName]] = frozenset({"queue", "prefill", "decode"})

# Which report of the same duration wins: lower is better. `estimated` may not enter a sum at all.
_RANK: Final[Mapping[str, int]] = {
    source: rank
    for rank, source in enumerate(
        ("engine_inband", "engine_span", "engine_plugin", "server_timing", "client", "kernel",
         "client_bound", "engine_window")
    )
}  # fmt: skip


@checked_dataclass(frozen=True, slots=True)
class Reported:
    """A reported duration, in nanoseconds, and its source."""

    ns: int
    source: Source


# A report is believed up to a day; beyond that it is garbage.
_MAX_NS: Final = 86_400 * 1_000_000_000
_NUMBER: Final = (int, float)  # made once: `int | float` in a call is a new object each time


def reported(value: object, unit_ns: int, source: Source) -> Reported | None:
    """Read a duration as a server reports it; an impossible value is unknown.

    Args:
        value: what was sent; only a number from 0 to below a day is believed.
        unit_ns: nanoseconds in the unit it is given in.
        source: where it comes from.

    Example:
        >>> reported(1.5, 1_000_000, "engine_inband")
        Reported(ns=1500000, source='engine_inband')
        >>> reported("soon", 1_000_000, "engine_inband")
    """
    if isinstance(value, bool) or not isinstance(value, _NUMBER):
        return None
    if not 0 <= value < _MAX_NS // unit_ns:
        return None
    return Reported(round(value * unit_ns), source)


@checked_dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Sub-phases of the network stage, in nanoseconds; `None` = not observed.

    On a pooled connection `dns`, `connect`, `tls` and `handshake` are 0: nothing was done, and
    that was seen. `handshake` is a WebSocket's own, the request that opens it and its answer.
    """

    client_wait: int | None = wired(
        "llmtrace.network.client_wait",
        "wait for a connection of the pool",
        key="network_client_wait",
    )
    dns: int | None = wired("llmtrace.network.dns", "DNS lookup", key="network_dns")
    connect: int | None = wired("llmtrace.network.connect", "TCP handshake", key="network_connect")
    tls: int | None = wired("llmtrace.network.tls", "TLS handshake", key="network_tls")
    handshake: int | None = wired(
        "llmtrace.network.handshake", "WebSocket opening handshake", key="network_handshake"
    )
    send: int | None = wired("llmtrace.network.send", "sending of the request", key="network_send")
    rtt: int | None = wired("llmtrace.network.rtt", "one network round trip", key="network_rtt")
    rtt_source: Source | None = None

    @property
    def known(self) -> int | None:
        """Sum of the known sub-phases, or `None` if none was observed."""
        known = [ns for ns in _phases(self) if ns is not None]
        return sum(known) if known else None

    def parts(self) -> Iterator[tuple[str, int | None]]:
        """Yield each sub-phase's name and nanoseconds, in the order they happen."""
        return zip(_PHASES, _phases(self), strict=True)


_PHASES: Final = tuple(line.field for line in wired_fields(Network, seconds=True))
_phases: Final = attrgetter(*_PHASES)


@checked_dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What was measured of one request: the client's own clock, and the reports of servers.

    All values are nanoseconds. `e2e` is the whole wait on the client's monotonic clock; everything
    else lies inside it. Durations of other machines are reported, never subtracted timestamps.

    Attributes:
        e2e: start of the call to the end of the stream (or of the response).
        ttft: start to the first chunk with content; `None` if none came. Of what is no stream
            itself, as a turn of an agent, it divides nothing.
        client: of the wait before the request was handed to the HTTP client, the application's own
            time: neither held nor marked. `None` = no HTTP hook saw the request.
        held_before: of `ttft` (or of `e2e` when no content came), the consumer's own time: it had
            the stream and did not read.
        held_after: of `e2e - ttft`, the consumer's own time, up to the close.
        retry_network: failed attempts that got no HTTP status, and the backoff after them.
        retry_gateway: failed attempts that got an HTTP error status, and their backoff.
        engine_decode: first to last token as the engine reports; used where no stream was read.
        frontend: the engine's own time outside queue and prefill, a part of `first_chunk`.
        kv_transfer: the wait of the engine that decodes for the KV cache of another one that did
            the prefill, a part of `first_chunk`.
        marked_before: explicit marks (`llmtrace.stage`) in the wait before the first content.
        marked_after: the same, in the wait after it.
        unsplit: time known to be on servers that cannot be split: of requests inside a turn.
        stream: whether the response came as a stream.
        tpot: time per output token, as read from a file; ignored where it can be computed.
        watched: whether the waits of the consumer were observed. If not, what comes
            after the first content is neither `decode` nor `render`, but unattributed.
        written: the partition as read from a file, where it does not follow from the rest: files
            of columns keep the stages and not the reports they were made of. It takes precedence.
    """

    e2e: int
    ttft: int | None = None
    client: int | None = wired(
        "llmtrace.unattributed.client",
        "the application's own time before the request was handed to its HTTP client",
    )
    held_before: int = wired(
        "llmtrace.consumer_time.before", "consumer time before the first content", 0
    )
    held_after: int = wired(
        "llmtrace.consumer_time.after", "consumer time after the first content", 0
    )
    network: Network = field(default_factory=Network)
    retry_network: int = wired(
        "llmtrace.retry.network",
        "failed attempts that got no HTTP status, with their backoff",
        0,
        in_columns=False,
    )
    retry_gateway: int = wired(
        "llmtrace.retry.gateway",
        "failed attempts that got an HTTP error status, with their backoff",
        0,
        in_columns=False,
    )
    gateway: Reported | None = wired(
        "llmtrace.reported.gateway",
        "self time of gateways, as reported",
        key="reported_gateway",
        in_columns=False,
    )
    queue: Reported | None = wired(
        "llmtrace.reported.queue",
        "wait in the engine's scheduler, as reported",
        key="reported_queue",
        in_columns=False,
    )
    prefill: Reported | None = wired(
        "llmtrace.reported.prefill",
        "scheduled to first token, as reported",
        key="reported_prefill",
        in_columns=False,
    )
    engine_decode: Reported | None = wired(
        "llmtrace.reported.decode",
        "first to last token, as reported",
        key="reported_decode",
        in_columns=False,
    )
    frontend: Reported | None = wired(
        "llmtrace.reported.frontend",
        "the engine's own time outside queue and prefill, as reported; a part of `first_chunk`",
        key="first_chunk_frontend",
    )
    kv_transfer: Reported | None = wired(
        "llmtrace.reported.kv_transfer",
        "wait of the decode engine for the KV cache of the prefill engine, as reported; a part of"
        " `first_chunk`",
        key="first_chunk_kv_transfer",
    )
    marked_before: Mapping[StageName, int] = field(default_factory=dict)
    marked_after: Mapping[StageName, int] = field(default_factory=dict)
    unsplit: int = wired(
        "llmtrace.unsplit",
        "time of a turn's requests that cannot be split",
        0,
        in_columns=False,
    )
    stream: bool = True
    tpot: int | None = field(default=None, compare=False)
    watched: bool = True
    written: Stages | None = None


@checked_dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Seven durations and a remainder, in nanoseconds, that add up to `e2e` exactly.

    `None` means not reported; it is never 0. `inconsistent` names the stages whose reported
    figure did not fit the window it must lie in and was cut to it; the raw figure stays in the
    `Timeline`. `client` is a named part of `unattributed`, not an eighth stage: the application's
    own time before the request was handed to the HTTP client.
    """

    network: int | None = None
    gateway: int | None = None
    queue: int | None = None
    prefill: int | None = None
    first_chunk: int | None = None
    decode: int | None = None
    render: int | None = None
    unattributed: int = 0
    client: int | None = None
    sources: Mapping[StageName, Source] = field(default_factory=dict)
    inconsistent: tuple[StageName, ...] = ()

    def __iter__(self) -> Iterator[tuple[StageName, int | None]]:
        """Yield each stage's name and nanoseconds, in the order of the request."""
        for name in STAGES:
            yield name, getattr(self, name)

    @property
    def total(self) -> int:
        """Sum of the known stages and the remainder: the request's `e2e`."""
        return self.unattributed + sum(ns for _, ns in self if ns is not None)


def split(timeline: Timeline) -> Stages:
    """Partition the wait that a timeline describes; every nanosecond goes to exactly one stage.

    Up to the first content, what was measured is taken from the window in this order: the
    application's own time before the request (unattributed), network and failed attempts, the
    engine's queue and prefill, the gateway, explicit marks, consumer time. What is left
    is `first_chunk` if queue and prefill are known, else `unattributed`.
    After it, what is not consumer time is `decode`.
    """
    if timeline.written is not None:
        return timeline.written
    e2e = max(0, timeline.e2e)
    # A unary response holds the engine's decode in the same window as the rest.
    whole = not timeline.stream
    window = e2e if whole or timeline.ttft is None else min(max(0, timeline.ttft), e2e)
    cut = _Cut(window)

    client = None if timeline.client is None else min(max(0, timeline.client), window)
    cut.left -= client or 0
    cut.take("network", _network(timeline, cut.left, whole=whole), "client")
    if timeline.retry_network:
        cut.take("network", timeline.retry_network, "client")
    if timeline.retry_gateway:
        cut.take("gateway", timeline.retry_gateway, "client")
    cut.report("queue", timeline.queue)
    cut.report("prefill", timeline.prefill)
    if whole:
        cut.report("decode", timeline.engine_decode)
    cut.report("gateway", timeline.gateway)
    cut.marked(timeline.marked_before)
    if timeline.watched:
        cut.consumer(timeline.held_before)
    rest = cut.left

    cut.left = e2e - window
    if timeline.watched:
        cut.consumer(timeline.held_after)
    cut.marked(timeline.marked_after)
    if not whole and timeline.watched:
        cut.take("decode", cut.left, "client")

    unsplit, sources = rest, cut.sources
    if cut.ns.keys() >= _ENGINE:
        unsplit = min(max(0, timeline.unsplit), rest)
        cut.ns["first_chunk"] = cut.ns.get("first_chunk", 0) + rest - unsplit
        # A remainder is only as exact as what was taken from it.
        windowed = "engine_window" in (sources["queue"], sources["prefill"], sources["decode"])
        sources["first_chunk"] = "engine_window" if windowed else "client"
    return Stages(
        **cut.ns,
        unattributed=unsplit + cut.left + (client or 0),
        client=client,
        sources=sources,
        inconsistent=tuple(dict.fromkeys(cut.inconsistent)),
    )


def _network(timeline: Timeline, window: int, *, whole: bool) -> int | None:
    """Return what the network took, less what of the sending the server's work overlapped.

    A server may begin before the client's last send returns, as it does whenever the client's
    thread is not scheduled in between. Then both clocks are right, and counting twice is wrong.
    """
    known = timeline.network.known
    if known is None:
        return None
    server = 0
    decode = timeline.engine_decode if whole else None
    for report in (timeline.queue, timeline.prefill, timeline.gateway, decode):
        if report is not None and report.source != "estimated":
            server += report.ns
    overlap = known + server - window
    return known - min(max(0, overlap), timeline.network.send or 0)


class _Cut:
    """A window being cut into stages: what is left, and what each stage got so far."""

    __slots__ = ("inconsistent", "left", "ns", "sources")

    def __init__(self, window: int) -> None:
        self.left = window
        self.ns: dict[StageName, int] = {}
        self.sources: dict[StageName, Source] = {}
        self.inconsistent: list[StageName] = []

    def take(self, stage: StageName, ns: int | None, source: Source) -> None:
        """Give a stage the time it claims, as far as it fits; `None` claims nothing."""
        if ns is None:
            return
        if not 0 <= ns <= self.left:
            self.inconsistent.append(stage)
            ns = min(max(0, ns), self.left)
        self.ns[stage] = self.ns.get(stage, 0) + ns
        self.sources[stage] = source
        self.left -= ns

    def report(self, stage: StageName, reported: Reported | None) -> None:
        """Give a stage what a server reported for it, unless it is only an estimate."""
        if reported is not None and reported.source != "estimated":
            self.take(stage, reported.ns, reported.source)

    def marked(self, marks: Mapping[StageName, int]) -> None:
        """Give stages their marks, always in the same order: what fits does not depend on it."""
        if marks:
            for stage in STAGES:
                self.take(stage, marks.get(stage), "client")

    def consumer(self, ns: int) -> None:
        """Give render the consumer's own time; overlapping the server's is no contradiction."""
        self.take("render", min(max(0, ns), self.left), "client")


def better(old: Reported | None, new: Reported | None) -> Reported | None:
    """Pick the more trustworthy of two reports of one duration; the first of equals stays.

    Reports of different sources may arrive late, twice or not at all, in any order: the pick is
    the same.
    """
    if new is None or new.source == "estimated":
        return old
    if old is None or old.source == "estimated" or _RANK[new.source] < _RANK[old.source]:
        return new
    return old


@checked_dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """An engine's report of one request: durations, token counts and the replica.

    Attributes:
        engine: which engine it was, as far as two records of one engine can be known as such.
        kv_connector: the name of its connector for KV blocks, if it has one.
        is_slice: whether this is a slice of the time of a request on its engine, and not the
            record of a whole one.
    """

    queue: Reported | None = None
    prefill: Reported | None = None
    decode: Reported | None = None
    frontend: Reported | None = None
    kv_transfer: Reported | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    preemptions: int | None = None
    replica: str | None = None
    engine: str | None = None
    kv_connector: str | None = None
    is_slice: bool = False


def with_engine(timeline: Timeline, figures: EngineFigures) -> Timeline:
    """Return the timeline with an engine's figures added, whenever they arrive.

    A partition read from a file (`Timeline.written`) stays as it is.
    """
    return replace(
        timeline,
        queue=better(timeline.queue, figures.queue),
        prefill=better(timeline.prefill, figures.prefill),
        engine_decode=better(timeline.engine_decode, figures.decode),
        frontend=better(timeline.frontend, figures.frontend),
        kv_transfer=better(timeline.kv_transfer, figures.kv_transfer),
    )
