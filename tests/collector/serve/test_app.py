"""Do the addresses answer, to those who may ask and under the names they may use?"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from llmtrace.core.listen_address import host_of
from llmtrace.core.stages import STAGES
from llmtrace.display.colours import STAGE_COLOURS
from llmtrace_collector.commands.collect import State
from llmtrace_collector.config.schema import Address
from llmtrace_collector.metrics.endpoint import OwnMetrics
from llmtrace_collector.receive.clock_watch import ClockWatch
from llmtrace_collector.receive.receiver_metrics import by_label, gauge
from llmtrace_collector.serve.app import live_page, make_app
from llmtrace_collector.serve.auth import Guard, hosts_for

TOKEN = "0123456789abcdef-secret"


async def shown(request):
    """Answer something only those who may ask should see."""
    return JSONResponse({"asked": request.url.path})


def client(*, token: str | None = None, hosts=None, reason: str | None = None, registry=None):
    """Return a client of an application with one address of the API."""
    app = make_app(
        registry or CollectorRegistry(),
        Mount("/api/v1", routes=[Route("/live", shown)]),
        lambda: reason,
        token=token,
        hosts=hosts,
    )
    return TestClient(app, base_url="http://127.0.0.1:4319")


def test_all_of_it():
    """Page, metrics, API, health; and words where there is nothing."""
    with client() as one:
        assert one.get("/").text.startswith("<!doctype html>")
        assert one.get("/metrics").status_code == 200
        assert one.get("/api/v1/live").json() == {"asked": "/api/v1/live"}
        assert one.get("/healthz").json() == {"status": "alive"}
        assert one.get("/readyz").json() == {"status": "ready"}
        gone = one.get("/nothing")
        assert (gone.status_code, gone.json()["error"]) == (
            404, "no such path; see /api/v1/",
        )  # fmt: skip
        wrong = one.post("/metrics")
        assert (wrong.status_code, wrong.json()["error"]) == (
            405, "POST is not allowed here; see /api/v1/",
        )  # fmt: skip


def test_an_error_of_ours_is_said_as_any_other():
    """What JSON cannot hold fails as the answer is made; the error still goes to the log."""

    async def infinite(request):
        return JSONResponse({"value": float("inf")})

    app = make_app(CollectorRegistry(), Mount("/api/v1", routes=[Route("/live", infinite)]), str)
    quiet = TestClient(app, base_url="http://127.0.0.1:4319", raise_server_exceptions=False)
    with quiet as one:
        answer = one.get("/api/v1/live")

    assert answer.status_code == 500
    assert answer.json() == {"error": "an error in the collector; its log has it"}
    with TestClient(app, base_url="http://127.0.0.1:4319") as one, pytest.raises(ValueError):
        one.get("/api/v1/live")


def test_not_ready_is_said_with_its_reason():
    """For programs that send requests here."""
    with client(reason="starting") as one:
        answer = one.get("/readyz")

    assert answer.status_code == 503
    assert answer.json() == {"status": "not ready", "reason": "starting"}


def test_what_is_wrong_is_said_and_is_no_reason_to_send_elsewhere():
    """Numbers and names alone: without a token a client learns no reason and no path."""
    state = State(ClockWatch(), {"join": "/data/store is damaged"})
    spool = SimpleNamespace(quarantine=SimpleNamespace(count=2))
    app = make_app(
        CollectorRegistry(),
        Mount("/api/v1", routes=[]),
        lambda: None,
        notes=lambda: state.notes(spool),
    )
    with TestClient(app, base_url="http://127.0.0.1:4319") as one:
        answer = one.get("/readyz")

    assert answer.status_code == 200
    assert answer.json() == {
        "status": "ready",
        "quarantined_requests": 2,
        "problem": "failing, and tried again: join; the log says why",
    }


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/live", "/nothing"])
@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ä"],
)
def test_without_the_token_nothing_is_shown(path, header):
    """Not whether there is anything, either."""
    headers = {} if header is None else {"Authorization": header.encode()}
    with client(token=TOKEN) as one:
        answer = one.get(path, headers=headers)

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert TOKEN not in answer.text


def test_with_the_token():
    """However the scheme is written; health needs none, and browsers are sent to its form."""
    with client(token=TOKEN) as one:
        for scheme in ("Bearer", "bearer"):
            answer = one.get("/api/v1/live", headers={"Authorization": f"{scheme} {TOKEN}"})
            assert answer.status_code == 200
        for path in ("/healthz", "/readyz"):
            assert one.get(path).status_code == 200
        seen = one.get("/", headers={"Accept": "text/html"}, follow_redirects=False)
        assert (seen.status_code, seen.headers["location"]) == (303, "./sign-in?next=")
        assert "<script" not in one.get("/").text


def test_a_name_that_is_not_ours():
    """A page elsewhere that has its name point here does not get to read along."""
    hosts = hosts_for(Address("127.0.0.1", 4319), ["collector.example"])
    with client(hosts=hosts) as one:
        for name in ("localhost:4319", "127.0.0.1", "[::1]:4319", "Collector.Example"):
            assert one.get("/healthz", headers={"Host": name}).status_code == 200
        for name in ("evil.example", "127.0.0.1.evil.example:4319", ""):
            assert one.get("/healthz", headers={"Host": name}).status_code == 421


def test_who_listens_to_all_is_asked_under_any_name():
    """Unless names are given."""
    assert hosts_for(Address("0.0.0.0", 4319), []) is None
    assert "a.example" in (hosts_for(Address("0.0.0.0", 4319), ["a.example"]) or ())
    assert host_of("[fe80::1]:80") == "fe80::1"
    assert host_of("fe80::1") == "fe80::1"


def test_other_protocols_are_not_guarded():
    """What is no HTTP request goes through as it is."""
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    asyncio.run(Guard(app, token=TOKEN, hosts=())({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]


def registry_of_two() -> CollectorRegistry:
    """Return a registry with a histogram that has an exemplar, and our own health."""
    registry = CollectorRegistry()
    Histogram("wait_seconds", "Waiting.", registry=registry).observe(0.3, {"trace_id": "ab"})
    many = Counter("many", "Many.", ["which"], registry=registry)
    for number in range(100):
        many.labels(str(number)).inc()
    registry.register(
        OwnMetrics(
            lambda: [
                by_label("own_things", "Things.", "kind", {"a": 3}),
                gauge("own_level", "Level.", 0.5),
            ]
        )
    )
    return registry


def test_metrics_in_both_formats():
    """Exemplars for who asks for OpenMetrics, and gzip for who takes it."""
    with client(registry=registry_of_two()) as one:
        plain = one.get("/metrics", headers={"Accept-Encoding": "identity"})
        open_ = one.get(
            "/metrics",
            headers={"Accept": "application/openmetrics-text; version=1.0.0"},
        )

    assert plain.headers["content-type"].startswith("text/plain")
    assert 'own_things_total{kind="a"} 3.0' in plain.text
    assert "own_level 0.5" in plain.text
    assert 'trace_id="ab"' not in plain.text
    assert open_.headers["content-encoding"] == "gzip"
    assert 'trace_id="ab"' in open_.text
    assert open_.text.endswith("# EOF\n")


def test_metrics_are_compressed_only_where_it_helps():
    """A small page goes as it is."""
    with client() as one:
        answer = one.get("/metrics", headers={"Accept-Encoding": "gzip"})

    assert "content-encoding" not in answer.headers


def test_the_page_fetches_nothing_but_from_here():
    """No script, font, image or style of anybody else's, and none that is not its own."""
    page, policy = live_page()

    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    assert "innerHTML" not in page
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert policy.count("'sha256-") == 2
    for stage in STAGES:
        assert f"--{stage}: {STAGE_COLOURS[stage]};" in page


def test_the_live_page_writes_times_as_the_other_pages_do():
    """In UTC, whatever the browser's zone and language are."""
    page, _ = live_page()

    assert "toLocale" not in page
    assert ".toISOString()" in page


def test_no_table_of_the_live_page_is_wider_than_a_narrow_screen():
    """A line is then a card whose cells say what they are, as on the list of requests."""
    page, _ = live_page()

    assert "content: attr(data-of)" in page
    assert page.count("fill(table, [") == 4
    assert page.count("tHead.replaceChildren") == 1
