"""Join an engine's records of single requests to the rows they belong to.

vLLM makes its request ids of the `X-Request-Id` it was sent, and responds with them:

    engine            id in response    sent
    chatcmpl-lt-01    chatcmpl-lt-01    lt-01   /v1/chat/completions, /v1/messages
    cmpl-lt-01-0      cmpl-lt-01        lt-01   /v1/completions, first prompt
    resp_ab12_0       resp_ab12         -       /v1/responses, first turn; the id is vLLM's own

Pure functions. A record whose row is not certain is joined to none. The collector joins by the
same ids what it has stored, in its `store/join_sql.py`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from llmtrace.core.row import Row, with_figures
from llmtrace.core.stages import EngineFigures, Reported, Source, better

_CHAT: Final = re.compile(r"chatcmpl-(.+)", re.DOTALL)
_COMPLETION: Final = re.compile(r"(cmpl-(.+))-[0-9]+", re.DOTALL)
_RESPONSE: Final = re.compile(r"(resp_.+)_[0-9]+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ClientIds:
    """The two ids by which a client knows a request: the response's, and the one it sent."""

    response_id: str
    request_id: str | None = None


def client_ids(engine_id: str) -> ClientIds:
    """Return the client's ids of the request that the engine calls `engine_id`.

    An id of another form is the response's own, and implies nothing about the id sent.

    Example:
        >>> client_ids("cmpl-lt-01-0")
        ClientIds(response_id='cmpl-lt-01', request_id='lt-01')
    """
    if chat := _CHAT.fullmatch(engine_id):
        return ClientIds(engine_id, chat[1])
    if completion := _COMPLETION.fullmatch(engine_id):
        return ClientIds(completion[1], completion[2])
    if response := _RESPONSE.fullmatch(engine_id):
        return ClientIds(response[1])
    return ClientIds(engine_id)


def join(rows: Sequence[Row], records: Iterable[tuple[str, EngineFigures]]) -> Iterator[Row]:
    """Yield each row, with the figures of its records where it has any.

    The id in the response decides, since gateways pass it on; where no record has it, the id that
    was sent. Nothing is joined to rows that share an id, nor to a row of several attempts that has
    several records: which attempt they are of is unknown.

    Args:
        rows: of requests that are over.
        records: the engine's own id of a request and the figures it reported, in any order.
    """
    by_response: dict[str, list[EngineFigures]] = {}
    sent: dict[str, list[EngineFigures]] = {}
    for engine_id, figures in records:
        ids = client_ids(engine_id)
        by_response.setdefault(ids.response_id, []).append(figures)
        if ids.request_id is not None:
            sent.setdefault(ids.request_id, []).append(figures)
    response_ids = Counter(row.response_id for row in rows)
    request_ids: Counter[str | None] = Counter(row.request_id for row in rows)
    for row in rows:
        found = _of(row.response_id, by_response, response_ids) or _of(
            row.request_id, sent, request_ids
        )
        if not found or (row.attempts > 1 and len(found) > 1):
            yield row
        else:
            yield with_figures(row, together(found))


def _of(
    key: str | None, records: Mapping[str, list[EngineFigures]], users: Mapping[str | None, int]
) -> list[EngineFigures]:
    return records.get(key, []) if key is not None and users[key] == 1 else []


def together(records: Sequence[EngineFigures]) -> EngineFigures:
    """Return what one request saw of the records that engines made for it.

    A record that decoded nothing and another that did are two legs: one engine did the prefill,
    another the decode, and none of the second's wait is the request's queue or prefill: it is
    `kv_transfer`, a part of `first_chunk`. Slices of one request's time add up to one record.
    Records of one engine are sequences, of `n > 1` or of several prompts: the first content comes
    from the one whose first token came first, and `decode` is from that token to the last one of
    all. Of other records the kind is unknown, so nothing is known.

    Args:
        records: of one request; `engine` says which engine made one, as far as that is known.
    """
    records = _with_slices(records)
    if len(records) == 1:
        return records[0]
    ends = [_first_and_last_token(one) for one in records]
    known = [end for end in ends if end is not None]
    if len(known) < len(records):
        return EngineFigures()
    if legs := _legs(records):
        prefill, decode = legs
        return replace(
            prefill,
            decode=decode.decode,
            kv_transfer=decode.queue,
            output_tokens=decode.output_tokens,
            preemptions=_sum(one.preemptions for one in records),
            replica=decode.replica,
            engine=None,
        )
    if records[0].engine is None or any(one.engine != records[0].engine for one in records):
        return EngineFigures()
    first = min(range(len(known)), key=known.__getitem__)
    leading = records[first]
    began, ended = known[first][0], max(last for _, last in known)
    assert leading.decode is not None  # noqa: S101 - or it would not be known
    return replace(
        leading,
        decode=Reported(ended - began, leading.decode.source),
        # Sequences of one prompt share it; of several prompts each has its own.
        prompt_tokens=None,
        cached_tokens=None,
        output_tokens=_sum(one.output_tokens for one in records),
        preemptions=_sum(one.preemptions for one in records),
    )


def _with_slices(records: Sequence[EngineFigures]) -> Sequence[EngineFigures]:
    """Put slices of a request's time into the record of the whole, if there is at most one.

    Slices below one span of a thread add up; several such spans are ranks of one engine, which do
    the same at the same time, so that the slowest one counts.
    """
    slices = [one for one in records if one.is_slice]
    whole = [one for one in records if not one.is_slice]
    if not slices or len(whole) > 1:
        return whole or [EngineFigures()]
    base = whole[0] if whole else EngineFigures()
    queue = _slowest((one.engine, one.queue) for one in slices)
    prefill = _slowest((one.engine, one.prefill) for one in slices)
    return [replace(base, queue=better(base.queue, queue), prefill=better(base.prefill, prefill))]


def _slowest(times: Iterable[tuple[str | None, Reported | None]]) -> Reported | None:
    by_rank: dict[str | None, int] = {}
    source: Source | None = None
    for rank, time in times:
        if time is not None:
            by_rank[rank] = by_rank.get(rank, 0) + time.ns
            source = time.source
    return None if source is None else Reported(max(by_rank.values()), source)


def _legs(records: Sequence[EngineFigures]) -> tuple[EngineFigures, EngineFigures] | None:
    """Return the one that only did the prefill, and the one that decoded; `None` = no such two."""
    prefills = [one for one in records if one.decode is not None and one.decode.ns == 0]
    decodes = [one for one in records if one.decode is not None and one.decode.ns != 0]
    if len(prefills) != 1 or len(decodes) != 1:
        return None
    same = prefills[0].replica is not None and prefills[0].replica == decodes[0].replica
    return None if same else (prefills[0], decodes[0])


def _first_and_last_token(figures: EngineFigures) -> tuple[int, int] | None:
    """Return when a sequence's first and last token came, in ns since it was queued."""
    queue, prefill, decode = figures.queue, figures.prefill, figures.decode
    if queue is None or prefill is None or decode is None:
        return None
    first = queue.ns + prefill.ns
    return first, first + decode.ns


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)
