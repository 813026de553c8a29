"""Encode rows, and all other spans of llmtrace, as OTLP bytes.

Protobuf's wire format, written by hand: through the SDK's spans and encoder a row costs 590 µs,
this way 32 (tests/bench/export_cost.py). Tests compare it with what the generated messages write.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from struct import Struct, calcsize
from time import sleep
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage

from llmtrace.core.failopen import internal_error
from llmtrace.core.row import TURN
from llmtrace.core.row_fields import PLAIN, REPORTED
from llmtrace.core.span import Span
from llmtrace.core.stages import DRAWN_ORDER
from llmtrace.exporters.otlp.dialect import OTEL, Dialect
from llmtrace.exporters.otlp.resource import resource
from llmtrace.exporters.span_layout import attempt_spans, failure_text, name_of, waterfall
from llmtrace.semconv.attributes import ATTEMPT_LOG, DERIVED, SCOPE, SPECIAL, STAGE_TIMES
from llmtrace.semconv.convert import Value, kind_of

if TYPE_CHECKING:
    from llmtrace.core.row import Row

# Field numbers of opentelemetry/proto, as tags: number << 3 | wire type (1 = 8 bytes, 2 = length).
_REQUEST_RESOURCE_SPANS: Final = b"\x0a"
_RESOURCE_SPANS_RESOURCE: Final = b"\x0a"
_RESOURCE_SPANS_SCOPE_SPANS: Final = b"\x12"
_SCOPE_SPANS_SCOPE: Final = b"\x0a"
_SCOPE_SPANS_SPANS: Final = b"\x12"
_SPAN_TRACE_ID: Final = b"\x0a\x10"  # with the length, which is always 16
_SPAN_SPAN_ID: Final = b"\x12\x08"
_SPAN_PARENT_SPAN_ID: Final = b"\x22\x08"
_SPAN_NAME: Final = b"\x2a"
_SPAN_KIND: Final = b"\x30"
_SPAN_KINDS: Final = {"internal": b"\x01", "server": b"\x02", "client": b"\x03"}
_SPAN_KIND_INTERNAL: Final = _SPAN_KIND + _SPAN_KINDS["internal"]
_SPAN_KIND_CLIENT: Final = _SPAN_KIND + _SPAN_KINDS["client"]
_SPAN_START: Final = b"\x39"
_SPAN_END: Final = b"\x41"
_SPAN_ATTRIBUTES: Final = b"\x4a"
_SPAN_STATUS: Final = b"\x7a"
_STATUS_MESSAGE: Final = b"\x12"
_STATUS_CODE_ERROR: Final = b"\x18\x02"
_SCOPE_NAME: Final = b"\x0a"
_KEY: Final = b"\x0a"
_VALUE: Final = b"\x12"
_STRING: Final = b"\x0a"
_BOOL: Final = b"\x10"
_INT: Final = b"\x18"
_DOUBLE: Final = b"\x21"
_ARRAY: Final = b"\x2a"
_ARRAY_VALUES: Final = b"\x0a"

_double = Struct("<d").pack
_times = Struct("<cQcQ").pack
_CHILD_PLACES: Final = 8  # in the plan of stages' spans, each

_INT64: Final = 1 << 63
_UINT64_MASK: Final = (1 << 64) - 1

# Combined with the request's span id they make those of its stages: always the same, so that a row
# sent twice is one row.
_CHILD: Final = {
    stage: int.from_bytes(uuid.uuid5(uuid.NAMESPACE_OID, f"llmtrace.stage.{stage}").bytes[:8])
    for stage in DRAWN_ORDER
}

# Encoding holds the interpreter's lock. It is released after so many rows, as a full batch would
# delay the very streams that are being measured by some 20 ms.
_ROWS_A_TURN: Final = 16


def encode(
    rows: Iterable[Row | Span], resources: Resources, most_bytes: int, dialect: Dialect = OTEL
) -> Iterator[tuple[bytes, int]]:
    """Encode rows and spans as OTLP trace export requests of at most about `most_bytes` each.

    A row that cannot be encoded is dropped and counted; the others still go.

    Yields:
        A request's bytes, and how many rows are in it.
    """
    by_service: dict[str, list[bytes]] = {}
    size = count = 0
    for turn, row in enumerate(rows):
        if turn % _ROWS_A_TURN == _ROWS_A_TURN - 1:
            sleep(0)
        try:
            if isinstance(row, Span):
                spans = encode_span(row, dialect)
            else:
                spans = encode_row(row, dialect)
        except Exception as error:  # noqa: BLE001 - one bad row must not cost the others
            internal_error("export.otlp.encode", error)
            continue
        if count and size + len(spans) > most_bytes:
            yield _request(by_service, resources), count
            by_service, size, count = {}, 0, 0
        by_service.setdefault(row.service, []).append(spans)
        size += len(spans)
        count += 1
    if count:
        yield _request(by_service, resources), count


def _request(by_service: dict[str, list[bytes]], resources: Resources) -> bytes:
    out: list[bytes] = []
    for service, spans in by_service.items():
        scope = _field(_SCOPE_SPANS_SCOPE, _field(_SCOPE_NAME, SCOPE.encode()))
        size = _varint(len(scope) + sum(map(len, spans)))
        head = _field(_RESOURCE_SPANS_RESOURCE, resources.of(service))
        head += _RESOURCE_SPANS_SCOPE_SPANS + size + scope
        whole = _varint(len(head) + sum(map(len, spans)))
        out += (_REQUEST_RESOURCE_SPANS, whole, head, *spans)  # copied once, by the join
    return b"".join(out)


class Resources:
    """The OTLP resource of each service of this process, encoded once."""

    __slots__ = ("_encoded",)

    def __init__(self) -> None:
        self._encoded: dict[tuple[int, str], bytes] = {}

    def of(self, service: str) -> bytes:
        """Return the encoded resource of one service."""
        key = os.getpid(), service
        encoded = self._encoded.get(key)
        if encoded is None:
            attributes = resource(service).attributes
            encoded = self._encoded[key] = ResourceMessage(
                attributes=[KeyValue(key=k, value=_any(v)) for k, v in attributes.items()]
            ).SerializeToString()
        return encoded


def encode_row(row: Row, dialect: Dialect = OTEL) -> bytes:
    """Encode a row as its client span, one for each stage that took any time, and its attempts.

    Raises:
        ValueError: an id is not hex of the right length.
    """
    trace_id = _id(row.trace_id, 16)
    span_id = _id(row.span_id, 8)
    parent = row.parent_span_id
    body = b"".join(
        (
            _SPAN_TRACE_ID,
            trace_id,
            _SPAN_SPAN_ID,
            span_id,
            b"" if parent is None else _SPAN_PARENT_SPAN_ID + _id(parent, 8),
            _entitled(row.operation, row.model, row.agent, row.outcome, row.error_type),
            _times(_SPAN_START, row.start, _SPAN_END, row.start + row.timeline.e2e),
            _row_attributes(dialect.row(row)),
        )
    )
    shared = _attributes(dialect.shared(row))
    out = [_SCOPE_SPANS_SPANS, _varint(len(body)), body]
    stages, sources, edges = waterfall(row)
    if stages:
        plan = _children(dialect, stages, sources, len(shared))
        number = int.from_bytes(span_id)
        ids = b"".join((shared, _SPAN_TRACE_ID, trace_id, _SPAN_PARENT_SPAN_ID, span_id))
        filled = [*plan.places]
        filled[1::_CHILD_PLACES] = [ids] * len(stages)
        filled[3::_CHILD_PLACES] = [child_id(number, stage).to_bytes(8) for stage in stages]
        filled[5::_CHILD_PLACES] = edges[:-1]
        filled[7::_CHILD_PLACES] = edges[1:]
        out.append(plan.pack(*filled))
    if row.attempt_log:
        out += (encode_span(span, dialect, shared) for span in attempt_spans(row))
    return b"".join(out)


@lru_cache(maxsize=256)
def _entitled(
    operation: str, model: str | None, agent: str | None, outcome: str, error_type: str | None
) -> bytes:
    """Return the name, the kind and the status of the span of such a row."""
    kind = _SPAN_KIND_INTERNAL if operation == TURN else _SPAN_KIND_CLIENT
    return (
        _text(_SPAN_NAME, name_of(operation, model, agent))
        + kind
        + _status(failure_text(outcome, error_type))
    )


def encode_span(span: Span, dialect: Dialect = OTEL, shared: bytes = b"") -> bytes:
    """Encode a span that is no row.

    Raises:
        ValueError: an id is not hex of the right length.
    """
    parts = [_SPAN_TRACE_ID, _id(span.trace_id, 16), _SPAN_SPAN_ID, _id(span.span_id, 8)]
    if span.parent_span_id is not None:
        parts += (_SPAN_PARENT_SPAN_ID, _id(span.parent_span_id, 8))
    parts += (
        _text(_SPAN_NAME, span.name),
        _SPAN_KIND,
        _SPAN_KINDS[span.kind],
        _times(_SPAN_START, span.start, _SPAN_END, span.start + span.duration_ns),
    )
    parts += (_attributes(dialect.span(span)), shared, _status(span.error))
    return _field(_SCOPE_SPANS_SPANS, b"".join(parts))


def child_id(span_id: int, stage: str) -> int:
    """Derive the id of a stage's span from that of its request's span."""
    return (span_id ^ _CHILD[stage]) or 1  # 0 is no id


class _Plan(NamedTuple):
    """How to pack bytes that differ in few places, by one call.

    Attributes:
        pack: packs them.
        places: its arguments: the constant ones, and `None` for each that is to be filled in.
    """

    pack: Callable[..., bytes]
    places: tuple[Any, ...]


@lru_cache(maxsize=256)
def _children(
    dialect: Dialect, stages: tuple[str, ...], sources: tuple[str | None, ...], shared: int
) -> _Plan:
    """Plan the spans of these stages; each also has `shared` bytes and the ids of its row."""
    ids = shared + len(_SPAN_TRACE_ID) + 16 + len(_SPAN_PARENT_SPAN_ID) + 8
    form = "<"
    places: list[bytes | None] = []
    for stage, source in zip(stages, sources, strict=True):
        same = _text(_SPAN_NAME, stage) + _SPAN_KIND_INTERNAL
        same += _attributes(dialect.stage(stage, source))
        child = f"{ids}s{len(_SPAN_SPAN_ID)}s8scQcQ"
        head = _SCOPE_SPANS_SPANS + _varint(len(same) + calcsize(f"<{child}")) + same
        form += f"{len(head)}s{child}"
        places += (head, None, _SPAN_SPAN_ID, None, _SPAN_START, None, _SPAN_END, None)
    return _Plan(Struct(form).pack, tuple(places))


def _id(text: str, size: int) -> bytes:
    raw = bytes.fromhex(text)
    if len(raw) != size:
        raise ValueError(f"{text!r} is not an id of {size} bytes")
    return raw


def _varint(number: int) -> bytes:
    if number < _MORE:
        return _BYTES[number]
    out = bytearray()
    while number >= _MORE:
        out.append(number & (_MORE - 1) | _MORE)
        number >>= 7
    out.append(number)
    return bytes(out)


_MORE: Final = 0x80  # set in each byte of a varint but the last
_BYTES: Final = tuple(bytes((number,)) for number in range(_MORE))


def _field(tag: bytes, body: bytes) -> bytes:
    return tag + _varint(len(body)) + body


def _text(tag: bytes, text: str) -> bytes:
    # A lone surrogate cannot be sent; better a question mark than no row.
    return _field(tag, text.encode("utf-8", "replace"))


def _status(error: str | None) -> bytes:
    if error is None:
        return b""
    return _field(_SPAN_STATUS, _text(_STATUS_MESSAGE, error) + _STATUS_CODE_ERROR)


def _attributes(attributes: Mapping[str, Value]) -> bytes:
    return b"".join(map(_attribute, attributes, attributes.values()))


def _row_attributes(attributes: Mapping[str, Value]) -> bytes:
    """Encode the attributes of a row: doubles by one call, repeated values from a cache."""
    found = _sorted(tuple(attributes))
    filled = [*found.plan.places]
    filled[1::2] = found.doubles(attributes)
    out = [found.plan.pack(*filled), _alike(found.alike, found.values(attributes))]
    for name in found.others:
        value = attributes[name]
        remembered = value.__class__ is int
        out.append(_remembered(name, value) if remembered else _attribute(name, value))
    return b"".join(out)


# Attributes that differ between few requests: their values together are encoded once, and cached.
_ALIKE: Final = (
    {line.name for line in (*PLAIN, *SPECIAL, *DERIVED) if line.kind not in {"int", "double"}}
    | {f"{line.name}.source" for line in (*REPORTED, *STAGE_TIMES)}
    | {"http.response.status_code", "server.port"}
) - {"llmtrace.request_id", "gen_ai.response.id", "llmtrace.tenant", "llmtrace.gaps", ATTEMPT_LOG}


class _Sorted(NamedTuple):
    """How the attributes of a row are encoded, by their names.

    Attributes:
        plan: for the doubles.
        doubles: picks the values of the doubles.
        alike: the names of those in `_ALIKE`.
        values: picks the values of `alike`.
        others: the other names.
    """

    plan: _Plan
    doubles: Callable[[Mapping[str, Value]], tuple[Any, ...]]
    alike: tuple[str, ...]
    values: Callable[[Mapping[str, Value]], tuple[Any, ...]]
    others: tuple[str, ...]


@lru_cache(maxsize=256)
def _sorted(names: tuple[str, ...]) -> _Sorted:
    doubles = tuple(name for name in names if kind_of(name) in {"seconds", "double"})
    heads = [_key(name) + _VALUE + b"\x09" + _DOUBLE for name in doubles]
    keys = tuple(_SPAN_ATTRIBUTES + _varint(len(head) + 8) + head for head in heads)
    pack = Struct("<" + "".join(f"{len(key)}sd" for key in keys)).pack
    alike = tuple(name for name in names if name in _ALIKE and name not in doubles)
    others = tuple(name for name in names if name not in {*doubles, *alike})
    places = tuple(place for key in keys for place in (key, None))
    return _Sorted(_Plan(pack, places), _picker(doubles), alike, _picker(alike), others)


def _picker(names: tuple[str, ...]) -> Callable[[Mapping[str, Value]], tuple[Any, ...]]:
    """Return a function that picks the values of some names: `itemgetter` needs two or more."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda attributes: tuple([attributes[name] for name in names])


@lru_cache(maxsize=256)
def _alike(names: tuple[str, ...], values: tuple[Value, ...]) -> bytes:
    return b"".join(map(_attribute, names, values))


@lru_cache(maxsize=4096, typed=True)
def _remembered(name: str, value: Value) -> bytes:
    return _attribute(name, value)


def _attribute(name: str, value: Value) -> bytes:
    if isinstance(value, str):
        text = value.encode("utf-8", "replace")
        if len(text) <= _SHORT:
            return _before(name, len(text)) + text
        encoded = _field(_STRING, text)
    elif isinstance(value, bool):
        encoded = _BOOL + (b"\x01" if value else b"\x00")
    elif isinstance(value, int):
        # OTLP's integers have 64 bits.
        fits = -_INT64 <= value < _INT64
        encoded = _INT + _varint(value & _UINT64_MASK) if fits else _text(_STRING, str(value))
    elif isinstance(value, float):
        encoded = _DOUBLE + _double(value)
    else:
        values = (_field(_ARRAY_VALUES, _text(_STRING, each)) for each in value)
        encoded = _field(_ARRAY, b"".join(values))
    return _field(_SPAN_ATTRIBUTES, _key(name) + _field(_VALUE, encoded))


@lru_cache(maxsize=1024)
def _key(name: str) -> bytes:
    return _text(_KEY, name)


_SHORT: Final = 64


@lru_cache(maxsize=1024)
def _before(name: str, size: int) -> bytes:
    """Return the bytes of a text attribute that come before its text of `size` bytes."""
    whole = _field(_SPAN_ATTRIBUTES, _key(name) + _field(_VALUE, _field(_STRING, bytes(size))))
    return whole[: len(whole) - size]


def _any(value: object) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return AnyValue(array_value=ArrayValue(values=[_any(each) for each in value]))
    return AnyValue(string_value=str(value))
