"""Random rows and timelines, such as may come out of any recording or off any wire."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from llmtrace.core.attempts import Attempt
from llmtrace.core.browser_timing import Browser
from llmtrace.core.json_values import MAX_S
from llmtrace.core.request_clock import GAP_BOUNDS_NS
from llmtrace.core.row import OUTCOMES, TURN, Row
from llmtrace.core.stages import SOURCES, STAGES, Network, Reported, Timeline
from llmtrace.semconv.convert import reserved

# Eleven days: beyond that a double holds seconds to fewer than nine digits after the point.
MAX_NS = 10**15

durations = st.one_of(
    st.integers(0, 10**9),
    st.integers(0, 200 * 10**9),
    st.integers(0, MAX_NS),
)
maybe = st.none() | durations
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
words = st.none() | text
counts = st.none() | st.integers(0, 2**40)
finite = st.floats(allow_nan=False, allow_infinity=False)
seconds = st.none() | st.floats(-MAX_S, MAX_S, exclude_min=True, exclude_max=True)

reported = st.none() | st.builds(Reported, durations, st.sampled_from(SOURCES))

networks = st.builds(
    Network,
    client_wait=maybe,
    dns=maybe,
    connect=maybe,
    tls=maybe,
    handshake=maybe,
    send=maybe,
    rtt=maybe,
    rtt_source=st.none() | st.sampled_from(SOURCES),
)

marks = st.dictionaries(st.sampled_from(STAGES), durations, max_size=3)

timelines = st.builds(
    Timeline,
    e2e=durations,
    ttft=maybe,
    client=maybe,
    held_before=durations,
    held_after=durations,
    network=networks,
    retry_network=st.just(0) | durations,
    retry_gateway=st.just(0) | durations,
    gateway=reported,
    queue=reported,
    prefill=reported,
    engine_decode=reported,
    frontend=reported,
    kv_transfer=reported,
    marked_before=marks,
    marked_after=marks,
    unsplit=st.just(0) | durations,
    stream=st.booleans(),
)

servers = st.one_of(
    text,
    st.builds(
        "{}:{}".format, st.sampled_from(["engine", "10.0.0.5", "[::1]"]), st.integers(0, 99999)
    ),
    st.sampled_from(["engine", "::1", "[::1]", "engine:", "engine:08", ":80", "::1:80", "é:1"]),
)

scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | finite | text

attributes = st.dictionaries(text.filter(lambda name: not reserved(name)), scalars, max_size=4)


evidence = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True),
    st.text(st.characters(categories=["L", "N", "P"]), max_size=20),
    max_size=3,
)


def hexes(size: int) -> st.SearchStrategy[str]:
    """Ids of `size` bytes in hex, none of them all zero."""
    return st.integers(1, (1 << 8 * size) - 1).map(lambda number: f"{number:0{2 * size}x}")


attempt_logs = st.lists(
    st.builds(
        Attempt,
        start_ns=durations,
        duration_ns=durations,
        backoff_ns=durations,
        status=st.none() | st.integers(100, 599),
        error_type=words,
        retry_after_ns=maybe,
    ),
    max_size=3,
).map(tuple)

# A day is the longest a page is believed to have waited.
page_durations = st.integers(0, 10**9) | st.integers(0, 86_400 * 10**9)
maybe_page = st.none() | page_durations

browsers = st.builds(
    Browser,
    kind=st.sampled_from(["fetch", "eventsource", "whole"]),
    outcome=st.none() | st.sampled_from(OUTCOMES),
    error_type=st.none() | st.sampled_from(["AbortError", "HTTP503", "TypeError"]),
    http_status=st.none() | st.integers(100, 599),
    protocol=st.none() | st.sampled_from(["http/1.1", "h2", "h3"]),
    e2e_ns=page_durations,
    held_before_ns=page_durations,
    held_after_ns=page_durations,
    chunks=st.integers(0, 2**40),
    **dict.fromkeys(
        (
            "ttft_ns", "blocked_ns", "first_byte_ns", "last_content_ns", "max_gap_ns",
            "client_wait_ns", "dns_ns", "connect_ns", "tls_ns", "gateway_ns", "first_paint_ns",
            "paint_lag_ns", "max_paint_lag_ns", "long_frames_total_ns", "hidden_ns",
        ),
        maybe_page,
    ),
    **dict.fromkeys(("renders", "paints", "long_frames"), counts),
)  # fmt: skip

gap_counts = st.none() | st.lists(
    st.integers(0, 1000), min_size=len(GAP_BOUNDS_NS) + 1, max_size=len(GAP_BOUNDS_NS) + 1
).map(tuple)

requests = st.builds(
    Row,
    request_id=text,
    trace_id=hexes(16),
    span_id=hexes(8),
    parent_span_id=st.none() | hexes(8),
    response_id=words,
    # Not what would be read as seconds, milliseconds or microseconds.
    start=st.integers(0, 10**9 - 1) | st.integers(10**16, 2**62),
    service=text.filter(bool),
    operation=text.filter(lambda name: name != TURN),
    agent=words,
    model=words,
    provider=words,
    server=st.none() | servers,
    route=words,
    tenant=words,
    region=words,
    replica=words,
    version=words,
    gateway=words,
    client=words,
    outcome=st.sampled_from(OUTCOMES),
    finish_reason=words,
    error_type=words,
    http_status=counts,
    cache_hit=st.none() | st.booleans(),
    attempts=st.integers(1, 9),
    attempt_log=attempt_logs,
    prompt_tokens=counts,
    cached_tokens=counts,
    cache_write_tokens=counts,
    output_tokens=counts,
    reasoning_tokens=counts,
    max_tokens=counts,
    response_model=words,
    chunks=st.integers(0, 2**40),
    burst_chunks=counts,
    max_gap_ns=maybe,
    last_content_ns=maybe,
    answered_ns=maybe,
    first_byte_ns=maybe,
    first_event_ns=maybe,
    first_reasoning_ns=maybe,
    first_text_ns=maybe,
    first_tool_call_ns=maybe,
    arrived_by_ns=maybe,
    client_lag_ns=maybe,
    preemptions=counts,
    spec_drafted=counts,
    spec_accepted=counts,
    kv_connector=words,
    inference_calls=counts,
    tool_calls=counts,
    tool_wall_s=seconds,
    tool_serial_s=seconds,
    tool_critical_path_s=seconds,
    tool_serial_loss_s=seconds,
    weight=st.floats(1, 1e6),
    attributes=attributes,
    response_headers=evidence,
    browser=st.none() | browsers,
    timeline=timelines,
    gap_counts=gap_counts,
)

# An agent's turn is a row, too, and no request.
turns = requests.map(lambda row: replace(row, operation=TURN))
rows = requests | turns
