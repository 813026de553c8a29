"""The join keys are sent, and headers that report on a request are read within bounds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core.recording import Recording
from llmtrace.core.stages import EngineFigures, Reported
from llmtrace.instrumentation.headers.propagation import answered, incoming, outgoing
from llmtrace.runtime.trace_context import HeaderPolicy, TraceContext
from llmtrace.testing import capture

MS = 1_000_000
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def recording() -> Recording:
    """A recording with ids."""
    return make_recording()


def make_recording() -> Recording:
    """Make a recording with ids, for tests whose examples each need one of their own."""
    made = Recording(lambda _, __: None, {"request_id": f"lt-{SPAN}"})
    made.span = TraceContext(TRACE, SPAN, None, sampled=True)
    return made


def raw(**headers: str) -> list[tuple[bytes, bytes]]:
    """Write headers as they come over the wire."""
    return [(k.replace("_", "-").encode(), v.encode("latin-1")) for k, v in headers.items()]


# --- out ----------------------------------------------------------------------------------------


def test_both_join_keys_are_sent(recording):
    """A request carries its trace and its id, unless its application said otherwise."""
    assert outgoing(recording, {"Accept": "*/*"}) == {
        "traceparent": f"00-{TRACE}-{SPAN}-01",
        "X-Request-Id": f"lt-{SPAN}",
    }


def test_what_is_not_sampled_says_so(recording):
    """The `traceparent` shows the server that this trace is not sampled."""
    recording.span = TraceContext(TRACE, SPAN, None, sampled=False)

    assert outgoing(recording, {})["traceparent"] == f"00-{TRACE}-{SPAN}-00"


def test_the_callers_own_keys_stay(recording):
    """An application's `traceparent` stays; its `x-request-id` becomes the row's id."""
    given = {"TraceParent": "00-aa-bb-01", "X-REQUEST-ID": "order-7"}

    assert outgoing(recording, given) == {}
    assert recording.info["request_id"] == "order-7"


@pytest.fixture
def own() -> Iterator[None]:
    """Set up hosts of one's own."""
    policy = HeaderPolicy(own_hosts=frozenset({"gateway.internal", "*.svc.local"}))
    with capture(headers=policy):
        yield


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("given", "parsed", "sent"),
    [
        ({}, False, None),
        ({}, True, "timing-comments"),
        ({"Accept": "text/event-stream"}, False, "timing-comments"),
        ({"Accept": "application/json"}, False, None),
    ],
)
def test_comments_are_for_who_can_read_them(recording, given, parsed, sent):
    """A client of event streams skips them; who reads bytes by hand may not know they exist."""
    for host in ("gateway.internal", "Edge.SVC.local", "a.b.svc.local"):
        added = outgoing(recording, given, host, parsed=parsed)
        assert added.get("X-Llmtrace-Accept") == sent


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("host", ["", "api.openai.com", "svc.local", "other.internal"])
def test_comments_are_for_hosts_of_ones_own(recording, host):
    """No other host gets a header that it may not know."""
    assert outgoing(recording, {}, host, parsed=True).keys() == {"traceparent", "X-Request-Id"}


@pytest.mark.parametrize(
    ("sent", "host", "names"),
    [
        ("own", "api.openai.com", set()),
        ("own", "gateway.internal", {"traceparent", "X-Request-Id", "X-Llmtrace-Accept"}),
        ("none", "gateway.internal", set()),
    ],
)
def test_who_gets_headers_can_be_chosen(recording, sent, host, names):
    """A host gets only the headers of its policy; an application's own id is still the row's."""
    policy = HeaderPolicy(sent, frozenset({"gateway.internal"}))
    with capture(headers=policy):
        assert outgoing(recording, {}, host, parsed=True).keys() == names
        outgoing(recording, {"x-request-id": "order-7"}, host)
    assert recording.info["request_id"] == "order-7"


@pytest.mark.parametrize(
    ("trace", "parent", "replaced"),
    [(TRACE, "1" * 16, True), (TRACE, "2" * 16, False), ("a" * 32, "1" * 16, False)],
)
def test_a_traceparent_of_the_rows_own_parent_is_replaced(recording, trace, parent, replaced):
    """The row lies between its parent and the server; what was set by hand stays."""
    recording.span = TraceContext(TRACE, SPAN, "1" * 16, sampled=True)
    added = outgoing(recording, {"traceparent": f"00-{trace}-{parent}-01"})

    assert added.get("traceparent") == (f"00-{TRACE}-{SPAN}-01" if replaced else None)


def test_what_others_say_of_the_trace_is_passed_on(recording):
    """A trace with a `tracestate` keeps it, unless the application sets its own."""
    recording.span = TraceContext(TRACE, SPAN, None, sampled=True, tracestate="vendor=1")

    assert outgoing(recording, {})["tracestate"] == "vendor=1"
    assert "tracestate" not in outgoing(recording, {"tracestate": "mine=2"})
    assert "tracestate" not in outgoing(recording, {"traceparent": "00-aa-bb-01"})


@pytest.mark.parametrize("value", ["", None, object()])
def test_a_caller_without_an_id_gets_ours(recording, value):
    """An empty id, or an SDK's sign for "leave it out", is none."""
    assert outgoing(recording, {"x-request-id": value})["X-Request-Id"] == f"lt-{SPAN}"


# --- in: figures --------------------------------------------------------------------------------


def test_a_gateways_time(recording):
    """A gateway reports its own time by either name."""
    for name in ("gateway", "gw"):
        incoming(recording, {"server-timing": f"{name};dur=12"})

        assert recording.gateway == Reported(12 * MS, "server_timing")


def test_gateways_behind_one_another_add_up(recording):
    """Each reports its own time; a request that passes several spent time in each."""
    incoming(
        recording,
        {
            "server-timing": "gateway;dur=4;desc=inner, gateway;dur=9;desc=outer",
            "x-litellm-overhead-duration-ms": "7.5",
            "x-kong-proxy-latency": "2",
        },
    )

    assert recording.gateway == Reported(22_500_000, "server_timing")
    assert recording.info["gateway"] == "inner,outer,litellm,kong"


@pytest.mark.parametrize(
    ("header", "queue", "prefill"), [("queue;dur=3", 3, None), ("prefill;dur=4", None, 4)]
)
def test_a_servers_queue_and_prefill(recording, header, queue, prefill):
    """What a server reports of its engine is kept, and what it does not report stays unknown."""
    incoming(recording, {"server-timing": header})

    assert recording.engine == [
        EngineFigures(
            queue=None if queue is None else Reported(queue * MS, "server_timing"),
            prefill=None if prefill is None else Reported(prefill * MS, "server_timing"),
        )
    ]


def test_headers_that_tell_nothing(recording):
    """Other entries say nothing of queue, prefill or the gateway."""
    incoming(recording, {"server-timing": "db;dur=5, gateway, queue;dur=x", "date": "now"})

    assert (recording.gateway, recording.engine) == (None, [])
    assert "gateway" not in recording.info


def test_what_the_application_calls_its_gateway_stays(recording):
    """A name the application gave is not replaced by what a header says."""
    recording.info["gateway"] = "edge-eu"
    incoming(recording, {"x-litellm-overhead-duration-ms": "7.5"})

    assert recording.info["gateway"] == "edge-eu"


def test_a_later_answer_replaces_what_an_earlier_one_reported(recording):
    """What one attempt's headers report is not kept for the next."""
    answered(recording, raw(server_timing="gw;dur=9", cf_ray="1"), ok=True)
    answered(recording, raw(server="uvicorn"), ok=True)

    assert (recording.gateway, recording.no_gateway_seen, recording.info["response_headers"]) == (
        None,
        True,
        {},
    )


def test_of_an_error_only_the_evidence_is_kept(recording):
    """An error's time is that of a failed attempt as a whole; a gateway's figure is in it."""
    answered(recording, raw(server_timing="gw;dur=9", retry_after="5"), ok=False)

    assert (recording.gateway, recording.no_gateway_seen) == (None, False)
    assert recording.info["response_headers"] == {"server-timing": "gw;dur=9", "retry-after": "5"}


@pytest.mark.parametrize(
    ("headers", "bare"),
    [
        ({"server": "uvicorn", "content-type": "text/event-stream"}, True),
        ({"content-type": "text/event-stream"}, False),
        ({"server": "nginx/1.22.1"}, False),
        ({"server": "uvicorn", "via": "1.1 proxy"}, False),
        ({"server": "uvicorn", "server-timing": "gw;dur=1"}, False),
        ({"server": "uvicorn", "x-envoy-upstream-service-time": "5"}, False),
        ({"server": "uvicorn, nginx"}, False),
        ({}, False),
    ],
)
def test_a_proxy_shows_in_the_headers(recording, headers, bare):
    """Behind anything that adds or replaces headers, they bound nothing of the engine."""
    incoming(recording, headers)

    assert recording.no_gateway_seen is bare


# --- in: evidence -------------------------------------------------------------------------------


def test_what_a_provider_tells_is_kept(recording):
    """Limits, ids and times are kept as they came, whatever the case of their names."""
    answered(
        recording,
        [
            (b"Openai-Processing-Ms", b"312"),
            (b"x-ratelimit-remaining-tokens", b"199974"),
            (b"anthropic-ratelimit-requests-reset", b"2026-11-21T18:00:00Z"),
            (b"Retry-After", b"20"),
            (b"request-id", b"req_011"),
            (b"CF-RAY", b"9a1-FRA"),
            (b"content-encoding", b"gzip"),
            (b"content-type", b"text/event-stream"),
        ],
        ok=True,
    )

    assert recording.info["response_headers"] == {
        "openai-processing-ms": "312",
        "x-ratelimit-remaining-tokens": "199974",
        "anthropic-ratelimit-requests-reset": "2026-11-21T18:00:00Z",
        "retry-after": "20",
        "request-id": "req_011",
        "cf-ray": "9a1-FRA",
        "content-encoding": "gzip",
    }


@pytest.mark.parametrize(
    "name",
    [
        "set-cookie", "cookie", "authorization", "proxy-authorization", "www-authenticate",
        "x-api-key", "openai-organization", "openai-project", "x-litellm-key-spend",
        "x-litellm-response-cost", "location", "server", "via",
    ],
)  # fmt: skip
def test_secret_headers_are_not_kept(recording, name):
    """No cookies, keys, accounts or prices."""
    answered(recording, [(name.encode(), b"secret")], ok=True)

    assert recording.info["response_headers"] == {}


def test_an_echo_of_our_own_id_is_no_evidence(recording):
    """VLLM and LiteLLM send back the id they were sent; a provider's own id is kept."""
    answered(recording, raw(x_request_id=f"lt-{SPAN}", request_id=f"lt-{SPAN}"), ok=True)
    assert recording.info["response_headers"] == {}

    answered(recording, raw(x_request_id="req_9"), ok=True)
    assert recording.info["response_headers"] == {"x-request-id": "req_9"}


def test_evidence_is_bounded(recording):
    """Of a response at most 32 headers are kept, and of each 256 characters."""
    many = [(b"x-ratelimit-%d" % number, b"9" * 5000) for number in range(100)]
    answered(recording, many, ok=True)

    kept = recording.info["response_headers"]
    assert len(kept) == 32
    assert set(map(len, kept.values())) == {256}


def test_evidence_does_no_harm_to_a_terminal(recording):
    """Control characters, such as begin a terminal's commands, are not kept."""
    answered(recording, [(b"retry-after", b"\x9b2J\x1b[2J5\x07")], ok=True)

    assert recording.info["response_headers"] == {"retry-after": "?2J?[2J5?"}


def test_a_repeated_header_is_one(recording):
    """Two gateways that add a header each are both read."""
    answered(recording, raw(server_timing="gw;dur=1") + raw(server_timing="gw;dur=2"), ok=True)

    assert recording.gateway == Reported(3 * MS, "server_timing")
    assert recording.info["response_headers"] == {"server-timing": "gw;dur=1, gw;dur=2"}


names = st.binary(max_size=40) | st.sampled_from(
    [
        b"server-timing", b"Server-Timing", b"x-ratelimit-a", b"retry-after", b"server", b"via",
        b"x-litellm-overhead-duration-ms", b"x-kong-proxy-latency", b"x-litellm-version",
        b"x-envoy-upstream-service-time", b"x-request-id",
    ]
)  # fmt: skip
values = st.binary(max_size=300) | st.text(
    st.sampled_from('gateway-totlups;dur=desc,"\\ 0123456789.e+-'), max_size=80
).map(str.encode)


@given(st.lists(st.tuples(names, values), max_size=60), st.booleans())
def test_any_headers_are_read_within_bounds(headers, ok):
    """Nothing a server sends raises, grows without bound, or yields what no request can last."""
    recording = make_recording()
    answered(recording, headers, ok=ok)

    kept = recording.info["response_headers"]
    assert len(kept) <= 32
    assert all(len(name) <= 300 and len(value) <= 256 for name, value in kept.items())
    assert all(value.isprintable() for value in kept.values())
    assert len(recording.info.get("gateway", "")) <= 128
    if recording.gateway is not None:
        assert 0 <= recording.gateway.ns <= 64 * 86_400_000 * MS


def test_names_are_remembered_within_bounds(recording):
    """Headers never seen before do not fill the memory, and are read all the same."""
    for number in range(2000):
        answered(recording, [(b"x-ratelimit-%d" % number, b"1")], ok=True)

        assert recording.info["response_headers"] == {f"x-ratelimit-{number}": "1"}

    from llmtrace.instrumentation.headers import propagation

    assert len(propagation._read_as) <= 512
