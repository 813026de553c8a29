"""The columns of a row in the store, and the expression that reads each of them from a span.

`request_parts` (what one span reports of a request) and `requests` (the whole request) have the same
columns, made from the names in `llmtrace.semconv.attributes`. Durations are whole nanoseconds, so
that stages add up exactly in SQL, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from llmtrace.core.browser_timing import IN_JSON, ON_WIRE, name_of
from llmtrace.core.content import NAMES as CONTENT
from llmtrace.core.row import OUTCOMES
from llmtrace.core.row_fields import MARKS, NETWORK, PLAIN, RAW, REPORTED, UNSPLIT
from llmtrace.core.stages import SOURCES, STAGES
from llmtrace.semconv.attributes import BROWSER, DERIVED, E2E, SPECIAL
from llmtrace_collector.store.sql_builder import quoted

WORD: Final = "LowCardinality(String)"
NS: Final = "Nullable(Int64)"
COUNT: Final = "Nullable(Int64)"
NUMBER: Final = "Nullable(Float64)"
FLAG: Final = "Nullable(Bool)"
SOURCE: Final = "Enum8({})".format(
    ", ".join(f"'{name}' = {number}" for number, name in enumerate(("", *SOURCES)))
)
MARKED: Final = "Map(LowCardinality(String), Int64)"
TEXTS: Final = "Map(LowCardinality(String), String)"

# Limits of texts from senders: ids and lists of figures, and words that are grouped by.
_MAX_ID: Final = 512
_MAX_WORD: Final = 256
# Limits of the application's own attributes.
_MAX_OWN: Final = 32
_MAX_OWN_LENGTH: Final = 1024
# Seconds: longer than any request by far, and small enough for nanoseconds in 64 bits.
_MAX_S: Final = "1e9"


@dataclass(frozen=True, slots=True)
class Field:
    """One column.

    Attributes:
        name: of the column.
        type: of ClickHouse.
        read: the expression that reads it from a span of `otel_traces`: `a` is the map of its
            attributes, `ns` of those that are seconds, `source_of` of those that name a source.
        unless: the expression of its value where no span reports it.
        meaning: for people.
    """

    name: str
    type: str
    read: str
    unless: str
    meaning: str


def attribute(name: str) -> str:
    """Return the expression of one attribute's text, empty where a span does not have it."""
    return f"a['{name}']"


def ns(name: str) -> str:
    """Return the expression of one attribute's seconds in nanoseconds, NULL where it is missing."""
    return f"ns['{name}']"


def source_of(name: str) -> str:
    """Return the expression of the source that an attribute names, empty where it is unknown."""
    return f"source_of['{name}']"


def all_ns() -> str:
    """Return the expression of `ns`: seconds as nanoseconds, as Python's `round` does.

    For all attributes at once: an insert takes longer to plan than to run, so it is written once.
    """
    number = "toFloat64OrNull(text)"
    read = (
        f"if(abs({number}) < {_MAX_S},"
        f" accurateCastOrNull(roundBankers({number} * 1e9), 'Int64'), NULL)"
    )
    return f"mapApply((key, text) -> (key, {read}), a)"


def all_sources() -> str:
    """Return the expression of `source_of`, empty where a text names no known source."""
    known = ", ".join(f"'{source}'" for source in SOURCES)
    return (
        f"mapApply((key, text) -> (key, CAST(if(text IN ({known}), text, ''),"
        f" '{quoted(SOURCE)}')), mapFilter((key, text) -> endsWith(key, '.source'), a))"
    )


def _word(name: str) -> str:
    return f"left({attribute(name)}, {_MAX_WORD})"


def _resource(name: str) -> str:
    return f"left(ResourceAttributes['{name}'], {_MAX_WORD})"


def _flag(name: str) -> str:
    return f"transform({attribute(name)}, ['true', 'false'], [true, false], NULL)"


def _plain(field: str, name: str, kind: str) -> tuple[str, str, str]:
    """Return type, expression and default of a plain field; what every row has is not nullable."""
    text = attribute(name)
    if field in {"request_id", "response_id", "gaps"}:
        return "String", f"left({text}, {_MAX_ID})", "''"
    if field == "operation":
        return WORD, f"if({text} = '', 'chat', {_word(name)})", "'chat'"
    if field == "outcome":
        known = ", ".join(f"'{one}'" for one in OUTCOMES)
        return WORD, f"if({text} IN ({known}), {text}, 'success')", "'success'"
    if field == "version":
        return WORD, f"if({text} = '', {_resource('service.version')}, {_word(name)})", "''"
    if field == "region":
        return WORD, f"if({text} = '', {_resource('cloud.region')}, {_word(name)})", "''"
    if field == "attempts":
        return "Int64", f"ifNull(toInt64OrNull({text}), 1)", "1"
    if field == "chunks":
        return "Int64", f"ifNull(toInt64OrNull({text}), 0)", "0"
    if field == "weight":
        return (
            "Float64",
            f"if(toFloat64OrNull({text}) > 0, assumeNotNull(toFloat64OrNull({text})), 1)",
            "1",
        )
    if kind == "string":
        return WORD, _word(name), "''"
    if kind == "int":
        return COUNT, f"toInt64OrNull({text})", "NULL"
    if kind == "boolean":
        return FLAG, _flag(name), "NULL"
    return NUMBER, f"toFloat64OrNull({text})", "NULL"


_HOST, _PORT = attribute("server.address"), attribute("server.port")
_SERVER: Final = (
    f"left(multiIf({_HOST} = '' OR {_PORT} = '', {_HOST},"
    f" position({_HOST}, ':') > 0, concat('[', {_HOST}, ']:', {_PORT}),"
    f" concat({_HOST}, ':', {_PORT})), {_MAX_WORD})"
)
_REASONS: Final = attribute("gen_ai.response.finish_reasons")
# An array is kept as JSON; some senders flatten a list of one to its only element.
_REASON: Final = (
    f"left(if(startsWith({_REASONS}, '['), JSONExtractString({_REASONS}, 1), {_REASONS}),"
    f" {_MAX_WORD})"
)


def _marked(when: str) -> str:
    prefix = f"llmtrace.marked.{when}."
    known = ", ".join(f"'{prefix}{stage}'" for stage in STAGES)
    return (
        f"CAST(mapApply((key, x) -> (substring(key, {len(prefix) + 1}), assumeNotNull(x)),"
        f" mapFilter((key, x) -> key IN ({known}) AND x IS NOT NULL, ns)), '{MARKED}')"
    )


def _browser() -> str:
    """What a web page reported, by the names in a row's JSON."""
    pairs = ((name_of(line.field.removeprefix("browser."), ON_WIRE), line) for line in BROWSER)
    names = {wire: name_of(line.field.removeprefix("browser."), IN_JSON) for wire, line in pairs}
    wire = ", ".join(f"'{name}'" for name in names)
    flat = ", ".join(f"'{name}'" for name in names.values())
    return (
        f"CAST(mapApply((key, text) -> (transform(key, [{wire}], [{flat}], ''), left(text, 64)),"
        f" mapFilter((key, text) -> key IN ({wire}), a)), '{TEXTS}')"
    )


def _own() -> str:
    """The application's own attributes: not llmtrace's, and no content."""
    taken = sorted(
        {line.name for table in (PLAIN, SPECIAL, DERIVED) for line in table}
        | {"service.name"}
        | set(CONTENT)
    )
    listed = ", ".join(f"'{name}'" for name in taken if not name.startswith("llmtrace."))
    own = f"NOT startsWith(key, 'llmtrace.') AND key NOT IN ({listed})"
    return (
        f"CAST(arrayMap(one -> (left(one.1, 128), left(one.2, {_MAX_OWN_LENGTH})),"
        f" arraySlice(CAST(mapFilter((key, text) -> {own}, a), 'Array(Tuple(String, String))'),"
        f" 1, {_MAX_OWN})), '{TEXTS}')"
    )


def _fields() -> Iterator[Field]:
    for line in PLAIN:
        kind, read, unless = _plain(line.field, line.name, line.kind)
        yield Field(line.field, kind, read, unless, line.meaning)
    yield Field("server", WORD, _SERVER, "''", "host and port of the server")
    yield Field("finish_reason", WORD, _REASON, "''", "why the model stopped")
    for name, wire, meaning in (
        ("stream", "gen_ai.request.stream", "whether the response came as a stream"),
        ("nested", "llmtrace.nested", "whether its time is part of another row's"),
        ("unwatched", "llmtrace.unwatched", "whether its consumer time is unknown"),
    ):
        yield Field(name, "Bool", f"lower({attribute(wire)}) = 'true'", "false", meaning)
    yield Field("e2e_ns", NS, ns(E2E), "NULL", "end-to-end latency")
    ttft = ns("gen_ai.response.time_to_first_chunk")
    yield Field("ttft_ns", NS, ttft, "NULL", "start to first content")
    for line in MARKS:
        yield Field(f"{line.field}_ns", NS, ns(line.name), "NULL", line.meaning)
    for line in RAW:
        zero = f"ifNull({ns(line.name)}, 0)"
        yield Field(f"{line.field}_ns", "Int64", zero, "0", line.meaning)
    for line in REPORTED:
        source = source_of(f"{line.name}.source")
        # A duration without a source is none.
        both = f"if({source} = '', NULL, {ns(line.name)})"
        yield Field(f"{line.key}_ns", NS, both, "NULL", line.meaning)
        yield Field(f"{line.key}_source", SOURCE, source, "''", "source")
    for line in UNSPLIT:
        yield Field(f"{line.field}_ns", NS, ns(line.name), "NULL", line.meaning)
    for line in NETWORK:
        yield Field(f"{line.key}_ns", NS, ns(line.name), "NULL", line.meaning)
    source = source_of("llmtrace.network.rtt.source")
    yield Field("network_rtt_source", SOURCE, source, "''", "source of the round trip")
    for when in ("before", "after"):
        meaning = f"explicit marks {when} the first content, in nanoseconds by stage"
        yield Field(f"marked_{when}", MARKED, _marked(when), "map()", meaning)
    yield Field("browser", TEXTS, _browser(), "map()", "what the page reported, in seconds")
    yield Field("attributes", TEXTS, _own(), "map()", "attributes of the application's own")


# In the order of the tables' columns. After the ids, which are the span's own.
FIELDS: Final = tuple(_fields())
