"""What senders send: rows and spans as OTLP bytes, by the real encoder."""

from __future__ import annotations

import itertools
import time

from hypothesis import HealthCheck, Phase, given, settings

from llmtrace.exporters.otlp.encode import Resources, encode
from llmtrace_collector.store.join_inputs_sql import MAX_S
from tests.strategies import requests, rows

_tokens = itertools.count()


def _storable(row):
    """Return whether a store makes a row of it: none of what is said to last longer than a day."""
    return row.timeline.e2e <= MAX_S * 10**9


STORABLE = rows.filter(_storable)
STORABLE_REQUESTS = requests.filter(_storable)


def delimited(messages):
    """Put each message's length before it, as a varint."""
    out = bytearray()
    for message in messages:
        length = len(message)
        while length > 127:
            out.append(length & 127 | 128)
            length >>= 7
        out.append(length)
        out += message
    return bytes(out)


def body_of(items):
    """Encode rows and spans as the body of one batch."""
    return delimited(body for body, _ in encode(items, Resources(), 1 << 20))


def send(store, items, token=None):
    """Store rows and spans in one batch."""
    store.insert_otlp(body_of(items), token or f"batch-{next(_tokens)}")


def join(store):
    """Run the join over all that was sent, and return its report."""
    return store.join(time.time_ns() + 10**6)


def fetch(store, columns, where="1", **parameters):
    """Return requests as dicts by column, by span id."""
    names = ["span_id", *columns]
    shown = store.query(f"SELECT {', '.join(names)} FROM requests FINAL WHERE {where}", parameters)
    short = [name.rpartition(" AS ")[2] for name in names]
    return {row[0]: dict(zip(short, row, strict=True)) for row in shown}


def drawn(strategy, number):
    """Draw so many examples at once: a statement costs the same for one row as for hundreds."""
    found = []

    @settings(
        max_examples=number,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(example):
        found.append(example)

    draw()
    return found
