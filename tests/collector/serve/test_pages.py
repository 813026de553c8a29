"""Do the request list and the request page show what is stored, and keep names as text?"""

from __future__ import annotations

import csv
import io
import re
from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.testclient import TestClient

from llmtrace_collector.config.link_templates import LinkTemplate
from llmtrace_collector.serve.request_list_page import ListView, list_html
from llmtrace_collector.store import open_store, request_list
from llmtrace_collector.store.request_list import ListQuery
from tests.collector.serve.stored_requests import COUNT, HOSTILE, application, fill

TOKEN = "0123456789abcdef-secret"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """An embedded store with these rows, and samples of their engine."""
    opened = open_store(tmp_path_factory.mktemp("pages"))
    fill(opened)
    yield opened
    opened.close()


def client(store, token: str | None = None, links=()) -> TestClient:
    """Return a browser of the pages, which follows no redirects."""
    app = application(store, token, links)
    return TestClient(app, base_url="http://127.0.0.1:4319", follow_redirects=False)


def listed(one: TestClient, query: str = "") -> list[str]:
    """Return the span ids of a list, as JSON has them and as its page links to them."""
    rows = one.get(f"/requests.json?{query}").json()["rows"]
    found = [row["span_id"] for row in rows]
    page = one.get(f"/requests?{query}")
    assert page.status_code == 200, page.text
    assert re.findall(r'href="requests/[0-9a-f]{32}\?span=([0-9a-f]{16})"', page.text) == found
    return found


def test_the_list_filters_sorts_and_pages(store):
    """All in the address, which a link in the page has with its time as it was."""
    with client(store) as one:
        newest = listed(one)
        assert len(newest) == 50
        assert newest[0] == "f" * 16
        assert len(listed(one, "tenant=acme&limit=100")) == COUNT / 2
        assert listed(one, "slower_than=1") == [f"{COUNT:016x}"]
        assert listed(one, "outcome=error") == ["f" * 16]
        assert listed(one, "kind=turns") == ["e" * 16]
        assert listed(one, "replica=engine-2:8000") == []
        longest = listed(one, "sort=queue&limit=100")
        assert longest[0] == f"{COUNT:016x}"
        assert set(longest) == {*newest, *listed(one, "limit=100")}
        pages, query = [], "sort=queue&limit=7"
        while query:
            page = one.get(f"/requests?{query}").text
            pages += re.findall(r"\?span=([0-9a-f]{16})", page)
            following = re.search(r'rel="next" href="\?([^"]+)"', page)
            query = unescape(following[1]) if following else ""
        assert pages == longest
        page = one.get("/requests?start=-2m&tenant=acme").text
        link = unescape(re.search(r'href="\?([^"]+)">Link to this', page)[1])
        said = parse_qs(link)
        assert said["tenant"] == ["acme"]
        assert float(said["end"][0]) - float(said["start"][0]) == pytest.approx(120)
        earlier = unescape(re.search(r'href="\?([^"]+)">Earlier', page)[1])
        assert float(parse_qs(earlier)["end"][0]) == pytest.approx(float(said["start"][0]))


def test_the_list_says_how_many_it_shows(store):
    """Exactly where it shows them all; a row that was written again may count twice elsewhere."""
    with client(store) as one:
        assert "62 requests, newest first" in one.get("/requests?limit=100").text
        assert "up to 62 requests, 50 shown" in one.get("/requests").text
        assert "1 request, " in one.get("/requests?slower_than=1").text
        assert "63 requests or turns" in one.get("/requests?kind=all&limit=100").text
    with pytest.MonkeyPatch.context() as patch, client(store) as one:
        patch.setattr(request_list, "counted", lambda *_: 64)
        assert "62 requests, newest first" in one.get("/requests?limit=100").text
        assert "up to 64 requests, 50 shown" in one.get("/requests").text
        assert one.get(f"/requests?id={COUNT:032x}").status_code == 303
        assert one.get(f"/requests?id={'e' * 32}").status_code == 200
        assert one.get("/requests?id=nothing").status_code == 200


def test_a_request_whose_gaps_are_not_reported(store):
    """Or are written as nothing of ours writes them."""
    with client(store) as one:
        page = one.get(f"/requests/{'f' * 32}").text

    assert "Gaps over time: not reported." in page
    assert 'class="gaps"' not in page


def test_a_list_of_requests_whose_latency_is_not_known():
    """As of a span whose duration is no number."""
    row = {"start": 1, "trace_id": "a" * 32, "span_id": "b" * 16}
    query = ListQuery(start_ns=0, end_ns=10)
    view = ListView(query=query, given={}, rows=[row], following=None, total=1, choices={})

    assert "not reported" in list_html(view)


def test_a_list_as_csv(store):
    """With a column a stage; what a spreadsheet would run is text in it."""
    with client(store) as one:
        answer = one.get("/requests.csv?outcome=error")
    [row] = csv.DictReader(io.StringIO(answer.text))

    assert row["tenant"] == "'=cmd()"
    assert row["model"] == HOSTILE
    assert (float(row["queue_s"]), row["gateway_s"]) == (0.02, "")
    assert "attachment" in answer.headers["content-disposition"]


@pytest.mark.parametrize("query", ["sort=cost", "kind=x", "slower_than=-1", "after=1", "modle=x"])
def test_an_address_that_makes_no_sense_is_answered_in_words(store, query):
    """A page that says which parameter is wrong."""
    with client(store) as one:
        answer = one.get(f"/requests?{query}")

    assert answer.status_code == 400
    assert query.partition("=")[0] in answer.text


@pytest.mark.parametrize("name", [f"{COUNT:032x}", f"lt-{COUNT - 1}"])
def test_the_page_of_a_request(store, name):
    """What is unusual, the stages with their sources, attempts, the engine, headers, settings."""
    links = (
        LinkTemplate("Jaeger", "https://jaeger.example/trace/{trace_id}?a={start_ms}"),
        LinkTemplate("By answer", "https://x.example/{response_id}"),
    )
    with client(store, links=links) as one:
        found = one.get(f"/requests?id={name}")
        assert found.status_code == 303
        page = one.get("/" + found.headers["location"].removeprefix("./")).text

    assert "Unusual: queue, 900.0 ms where 22.0 ms is usual: 878.0 ms more" in page
    for words in ("engine_inband", "attempt 1", "503, then a wait of 20.0 ms", "attempt 2",
                  "not reported", "longest gap</dt><dd>80.0 ms",
                  "Longest gap 80.0 ms, 0.4 to 0.5 s after",
                  "<title>0.1 to 0.3 s: 20.6 ms</title>",
                  "40 (usually 2)", "97%",
                  "x-ratelimit-remaining</dt><dd>7", "max_num_seqs</dt><dd>64",
                  f"https://jaeger.example/trace/{COUNT:032x}?a="):  # fmt: skip
        assert words in page, words
    assert "By answer" not in page


def test_a_turn_leads_to_its_requests_and_back(store):
    """Each has a page of its own."""
    with client(store) as one:
        turn = one.get(f"/requests/{'e' * 32}").text
        within = one.get(f"/requests/{'e' * 32}?span={'d' * 16}").text
        gone = one.get("/requests/nothing")

    assert f'href="{"e" * 32}?span={"d" * 16}"' in turn
    assert "invoke_agent planner" in turn
    assert f'href="{"e" * 32}?span={"e" * 16}">The turn it lies in' in within
    assert gone.status_code == 404


@pytest.mark.parametrize("path", ["/requests", f"/requests/{'f' * 32}", "/sign-in", "/requests?x"])
def test_no_page_runs_or_loads_anything(store, path):
    """Names stay text, and the policy allows one style by its hash."""
    with client(store) as one:
        answer = one.get(path)

    assert "<script" not in answer.text
    assert " style=" not in answer.text
    assert not re.search(r'(?:src|href)="(?:https?:)?//', answer.text)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "script" not in policy


def test_a_browser_signs_in_once(store):
    """The token is shown by a form; the cookie reads, writes nothing, and ends with the token."""
    with client(store, TOKEN) as one:
        html = {"Accept": "text/html"}
        asked = one.get("/requests/lt-3?span=ab", headers=html)
        assert asked.status_code == 303
        form = urlsplit(asked.headers["location"])
        assert form.path == "../sign-in"
        [following] = parse_qs(form.query)["next"]
        assert one.get("/requests").status_code == 401
        assert "not the token" in one.post("/sign-in", data={"token": "x"}).text

        done = one.post("/sign-in", data={"token": TOKEN, "next": following})
        assert done.headers["location"] == "./requests/lt-3?span=ab"
        assert TOKEN not in done.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=lax"} <= {
            part.strip() for part in done.headers["set-cookie"].split(";")
        }
        assert one.get("/requests").status_code == 200
        assert one.post("/api/v1/events", json={}).status_code == 401
        elsewhere = one.post("/sign-in", data={"token": TOKEN, "next": "//evil.example"})
        assert elsewhere.headers["location"] == "./"
        cookies = dict(one.cookies)
    with client(store, TOKEN + "-new") as other:
        other.cookies.update(cookies)
        assert other.get("/requests").status_code == 401
