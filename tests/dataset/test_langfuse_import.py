"""Do rows come back from a Langfuse project, by its own client from a server of its shapes?"""

from __future__ import annotations

import base64
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from langfuse.api import ObservationV2
from langfuse.api.core.pydantic_utilities import parse_obj_as
from langfuse.api.observations.types.observations_v2response import ObservationsV2Response

from llmtrace import cli
from llmtrace.core.errors import ConfigError, SourceError
from llmtrace.core.row import from_dict
from llmtrace.dataset.langfuse_import import read_rows
from llmtrace.exporters.langfuse.observations import row_of
from llmtrace.exporters.langfuse.settings import Project
from llmtrace.exporters.langfuse.sink import langfuse_sink
from llmtrace.exporters.row_files.read_back import read_rows as read_file
from llmtrace.semconv.convert import from_attributes, to_attributes
from tests.exporters.receivers import http_receiver
from tests.exporters.samples import MS, SPAN, START, TRACE, typical, unsplit
from tests.exporters.test_wire import attributes_of

FROM = datetime.fromtimestamp(START / 1e9, UTC) - timedelta(minutes=5)
TO = FROM + timedelta(hours=1)
KEYS = {"LANGFUSE_PUBLIC_KEY": "pk-lf-1", "LANGFUSE_SECRET_KEY": "sk-lf-2"}


def iso(unix_ns: int) -> str:
    """Return a time as the API says it: to the millisecond."""
    at = datetime.fromtimestamp(unix_ns // 1_000_000 / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def observation(**given) -> dict:
    """Return an observation as version 2 of the API does, checked by the client's own model."""
    made = {
        "id": SPAN,
        "traceId": TRACE,
        "startTime": iso(START),
        "endTime": iso(START + 2_400 * MS),
        "projectId": "p-1",
        "parentObservationId": None,
        "type": "GENERATION",
        "name": "OpenAI-generation",
        "level": "DEFAULT",
        "statusMessage": None,
        "version": None,
        "environment": "default",
        "bookmarked": False,
        "public": False,
        "userId": None,
        "sessionId": None,
        "isRootObservation": True,
        "completionStartTime": iso(START + 400 * MS),
        "createdAt": iso(START + 9_000 * MS),
        "updatedAt": iso(START + 9_000 * MS),
        "metadata": {},
        "model": "gpt-4o",
        "internalModelId": None,
        "modelParameters": {"temperature": 1},
        "usageDetails": {"input": 176, "input_cached_tokens": 1024, "output": 200, "total": 1400},
        "costDetails": {},
        "totalCost": 0.0,
        "traceName": None,
        "tags": [],
        "release": None,
        **given,
    }
    known = {f.alias or name for name, f in ObservationV2.model_fields.items()}
    aliases = {
        meta.alias
        for f in ObservationV2.model_fields.values()
        for meta in f.metadata
        if hasattr(meta, "alias")
    }
    assert set(made) <= known | aliases
    return made


def ingested(row, *, as_text=False, attributes_only=False) -> dict:
    """Return what the API gives back of a row that llmtrace's sink has sent.

    Args:
        row: the row.
        as_text: a server that keeps metadata as text.
        attributes_only: the row came as a plain OTLP span, without anything of Langfuse's.
    """
    with http_receiver() as received:
        sink = langfuse_sink(interval_s=60.0, environ={**KEYS, "LANGFUSE_BASE_URL": received.url})
        sink.write(row)
        assert sink.flush(10)
        sink.close()
        span = received.spans()[0]
    sent = attributes_of(span)
    metadata = json.loads(sent["langfuse.observation.metadata"])
    if attributes_only:
        plain = to_attributes(row)
        metadata = {
            "attributes": {k: v if isinstance(v, str) else json.dumps(v) for k, v in plain.items()}
        }
    if as_text:
        metadata = {k: v if isinstance(v, str) else json.dumps(v) for k, v in metadata.items()}
    return observation(
        id=span.span_id.hex(),
        traceId=span.trace_id.hex(),
        parentObservationId=span.parent_span_id.hex() or None,
        startTime=datetime.fromtimestamp(START / 1e9, UTC).isoformat().replace("+00:00", "Z"),
        type=str(sent.get("langfuse.observation.type", "generation")).upper(),
        name=span.name,
        userId=sent.get("user.id"),
        sessionId=sent.get("session.id"),
        tags=list(sent.get("langfuse.trace.tags", ())),
        metadata={
            **metadata,
            "resourceAttributes": json.dumps({"service.name": "shop", "service.instance.id": "1"}),
            "scope": {"name": "llmtrace", "attributes": {}},
        },
    )


def model(given: dict) -> ObservationV2:
    """Return an observation as the client makes it."""
    return parse_obj_as(ObservationV2, given)


@dataclass
class Langfuse:
    """A server of version 2 of the observations API: its rows, and the requests it got."""

    url: str = ""
    held: list = field(default_factory=list)
    asked: list = field(default_factory=list)
    headers: list = field(default_factory=list)
    answer: object = None  # a status to respond with, or bytes to send, instead
    page: int = 1000


@contextmanager
def langfuse(*held, **more):
    """Serve observations on loopback."""
    server_side = Langfuse(held=list(held), **more)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked = {k: v[0] for k, v in parse_qs(urlsplit(self.path).query).items()}
            server_side.asked.append((urlsplit(self.path).path, asked))
            server_side.headers.append({k.lower(): v for k, v in self.headers.items()})
            if isinstance(server_side.answer, int):
                self._say(server_side.answer, b'{"message": "no"}')
            elif server_side.answer is not None:
                self._say(200, server_side.answer)
            else:
                self._say(200, json.dumps(find(server_side, asked)).encode())

        def _say(self, status, body):
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    server_side.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield server_side
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def find(server: Langfuse, asked: dict) -> dict:
    """Respond as the API does: what all conditions hold for, newest first, a page at a time."""
    conditions = json.loads(asked["filter"])
    fits = [one for one in server.held if all(holds(one, c) for c in conditions)]
    fits.sort(key=lambda one: one["startTime"], reverse=True)
    first = int(base64.b64decode(asked["cursor"])) if "cursor" in asked else 0
    last = first + min(int(asked["limit"]), server.page)
    meta = {"cursor": base64.b64encode(str(last).encode()).decode()} if last < len(fits) else {}
    answer = {"data": fits[first:last], "meta": meta}
    parse_obj_as(ObservationsV2Response, answer)
    return answer


def holds(one: dict, condition: dict) -> bool:
    """Return whether a condition of the API's filter holds."""
    column, operator, value = condition["column"], condition["operator"], condition["value"]
    if condition["type"] == "datetime":
        at, limit = (datetime.fromisoformat(t) for t in (one[column], value))
        return at >= limit if operator == ">=" else at < limit
    if condition["type"] == "numberObject":
        flat = {**one[column].get("attributes", {}), **one[column]}
        return condition["key"] in flat and float(flat[condition["key"]]) >= value
    assert (condition["type"], operator) == ("string", "=")
    return one[column] == value


def reading(server: Langfuse, **more):
    """Read the rows of a server."""
    project = Project(public_key="pk-lf-1", secret_key="sk-lf-2", url=server.url)
    return read_rows(FROM, TO, **{"project": project, "timeout_s": 10.0, **more})


# --- llmtrace's own rows -------------------------------------------------------------------------


@pytest.mark.parametrize("row", [typical(), unsplit(), typical(outcome="error", error_type="x.Y")])
@pytest.mark.parametrize(
    "how",
    [{}, {"as_text": True}, {"attributes_only": True}],
    ids=lambda how: next(iter(how), "as it was sent"),
)
def test_a_row_comes_back_whole(row, how):
    """What llmtrace wrote is read back to the nanosecond, however the server kept it."""
    row = replace(row, attributes={"user.id": "ada", "shop.cart": "full"})
    back = row_of(model(ingested(row, **how)))

    assert back == row
    assert back.stages == row.stages


def test_text_that_looks_like_a_number_stays_text():
    """A server that decodes metadata may make a number of a name."""
    given = ingested(typical(tenant="42", route="true"))
    given["metadata"] |= {"llmtrace.tenant": 42, "llmtrace.route": True}
    back = row_of(model(given))

    assert (back.tenant, back.route) == ("42", "true")


def test_user_session_and_tags_come_from_langfuses_fields():
    """What Langfuse keeps apart from the metadata is on the row again."""
    given = {"user.id": "ada", "session.id": "s-1", "tag.tags": ("beta", "eu")}
    back = row_of(model(ingested(typical(attributes=given))))

    assert back.attributes == given


# --- others' generations -------------------------------------------------------------------------


def test_a_generation_of_another_program():
    """A row has what is known of it; its stages are unattributed, and still add up."""
    row = row_of(
        model(
            observation(
                userId="ada",
                environment="staging",
                traceName="checkout",
                metadata={"resourceAttributes": {"service.name": "shop"}, "finish_reason": "stop"},
            )
        )
    )

    assert (row.start, row.e2e_ns, row.ttft_ns) == (START, 2_400 * MS, 400 * MS)
    assert (row.model, row.service, row.route) == ("gpt-4o", "shop", "checkout")
    assert (row.prompt_tokens, row.cached_tokens, row.output_tokens) == (1200, 1024, 200)
    assert (row.outcome, row.stream) == ("success", True)
    assert row.attributes == {
        "user.id": "ada",
        "langfuse.environment": "staging",
        "langfuse.trace.name": "checkout",
    }
    assert {name: ns for name, ns in row.stages if ns is not None} == {}
    assert row.stages.unattributed == row.stages.total == row.e2e_ns
    assert row.ttft_arrival_s is None


def test_what_was_not_observed_stays_so():
    """Written to a file or a span and read again, its decode and render are still unknown."""
    row = row_of(model(observation()))
    span = from_attributes(
        to_attributes(row), start=row.start, trace_id=TRACE, span_id=SPAN
    )  # fmt: skip

    assert from_dict(json.loads(json.dumps(row.as_dict()))) == row
    assert span.stages == row.stages


def test_a_failed_generation():
    """Its level says that it failed; what it says of that is kept, cut short."""
    row = row_of(
        model(
            observation(
                level="ERROR",
                statusMessage="x" * 1000,
                completionStartTime=None,
                usageDetails={},
                model=None,
            )
        )
    )

    assert (row.outcome, row.ttft_ns, row.model, row.stream) == ("error", None, None, False)
    assert (row.prompt_tokens, row.output_tokens) == (None, None)
    assert row.attributes == {"langfuse.status_message": "x" * 200}


@pytest.mark.parametrize(
    "given",
    [
        {"endTime": None},
        {"metadata": {"llmtrace.e2e": "soon"}, "endTime": None},
        {"metadata": {"llmtrace.e2e": 1.0, "llmtrace.outcome": "lost"}},
    ],
)
def test_what_is_no_request_is_no_row(given):
    """What is not over, or says what cannot be, is left out."""
    assert row_of(model(observation(**given))) is None


@pytest.mark.parametrize("first", [-5, 5_000])
def test_a_first_token_outside_of_the_request(first):
    """A clock that was set in between does not make the time negative."""
    row = row_of(model(observation(completionStartTime=iso(START + first * MS))))

    assert 0 <= row.ttft_ns <= row.e2e_ns
    assert row.stages.total == row.e2e_ns


# --- reading -------------------------------------------------------------------------------------


def test_reading_a_project():
    """Its generations and llmtrace's other rows come, in order; stages and steps do not."""
    later = typical(1, start=START + 60_000 * MS)
    turn = typical(2, operation="invoke_agent", start=START + 30_000 * MS)
    with langfuse(
        ingested(typical()),
        {**ingested(later), "startTime": iso(later.start)},
        {**ingested(turn), "startTime": iso(turn.start)},
        observation(id="aa", startTime=iso(START + 1_000 * MS)),
        observation(id="bb", type="SPAN", name="queue", metadata={"llmtrace.stage.name": "queue"}),
        observation(id="cc", startTime=iso(START - 400_000 * MS)),
        observation(id="dd", endTime=None),
    ) as server:
        found = reading(server)

    assert [row.span_id for row in found.rows] == [
        SPAN, "aa", turn.span_id, later.span_id,
    ]  # fmt: skip
    assert (found.skipped, found.more) == (1, False)


def test_the_requests_are_those_of_the_api():
    """Path, authentication, fields, window and size are what the API expects."""
    with langfuse() as server:
        reading(server, environment="staging")
    basic = base64.b64encode(b"pk-lf-1:sk-lf-2").decode()
    path, asked = server.asked[0]
    conditions = [json.loads(one["filter"]) for _, one in server.asked]

    assert path == "/api/public/v2/observations"
    assert {h["authorization"] for h in server.headers} == {f"Basic {basic}"}
    assert set(asked["fields"].split(",")) == {
        "core", "basic", "time", "metadata", "model", "usage", "trace_context",
    }  # fmt: skip
    assert asked["limit"] == "1000"
    assert [c[3]["value"] for c in conditions] == ["GENERATION", "SPAN", "AGENT"]
    for one in conditions:
        assert one[0] == {
            "type": "datetime", "column": "startTime", "operator": ">=",
            "value": FROM.isoformat().replace("+00:00", "Z"),
        }  # fmt: skip
        assert one[1]["operator"] == "<"
        assert one[2] == {
            "type": "string", "column": "environment", "operator": "=", "value": "staging",
        }  # fmt: skip


def test_pages_are_read_to_the_end():
    """All pages come, each once."""
    held = [ingested(typical(number)) for number in range(7)]
    with langfuse(*held, page=3) as server:
        found = reading(server)

    assert len(found.rows) == 7
    assert not found.more


@pytest.mark.parametrize("limit", [1, 4, 7])
def test_no_more_is_read_than_asked_for(limit):
    """The bound covers all pages and kinds, and is reported even if nothing more is there."""
    held = [ingested(typical(number)) for number in range(7)]
    with langfuse(*held, page=3) as server:
        found = reading(server, limit=limit)

    assert len(found.rows) == limit
    assert found.more


def test_a_row_under_langfuses_generation_is_the_same_request():
    """What `langfuse.openai` recorded and llmtrace has the stages of is one row."""
    ours = ingested(
        typical(
            parent_span_id="00000000000000aa", attributes={"langfuse.observation.type": "span"}
        )
    )
    with langfuse(ours, observation(id="00000000000000aa")) as server:
        found = reading(server)

    assert ours["type"] == "SPAN"
    assert [row.span_id for row in found.rows] == [SPAN]
    assert found.rows[0].stages.queue == 120 * MS


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (401, "HTTP 401: it does not know these keys; LANGFUSE_PUBLIC_KEY"),
        (403, "HTTP 403: these keys may not read"),
        (404, "HTTP 404: it has no /api/public/v2/observations"),
        (400, "HTTP 400"),
        (b"<html>sign in</html>", "HTTP 200 with something that is no list"),
        (b'{"data": "x", "meta": {}}', "sent what is not in its API"),
    ],
)
def test_what_went_wrong_is_said(answer, said):
    """Each refusal is a SourceError that says what to do, and shows no key."""
    with langfuse(answer=answer) as server, pytest.raises(SourceError) as raised:
        reading(server)

    assert said in str(raised.value)
    assert "sk-lf" not in str(raised.value)
    assert "Basic" not in str(raised.value)


def test_a_server_that_is_not_there():
    """No server at the address is a SourceError, too."""
    with pytest.raises(SourceError, match="cannot be reached: ConnectError"):
        reading(Langfuse(url="http://127.0.0.1:9"))


def test_a_server_that_does_not_answer():
    """It is given up after the time-out."""
    from tests.exporters.receivers import silent_server

    with silent_server() as url, pytest.raises(SourceError, match="did not respond within"):
        reading(Langfuse(url=url), timeout_s=0.2)


# --- the command ---------------------------------------------------------------------------------


def test_the_command_writes_rows(monkeypatch, capsys, tmp_path):
    """`llmtrace rows langfuse` prints rows as lines that the other commands read."""
    with langfuse(ingested(typical()), observation(id="aa"), observation(endTime=None)) as server:
        for name, value in {**KEYS, "LANGFUSE_BASE_URL": server.url}.items():
            monkeypatch.setenv(name, value)
        status = cli.main(["rows", "langfuse", "--from", FROM.isoformat(), "--to", TO.isoformat()])
    said = capsys.readouterr()
    file = tmp_path / "rows.jsonl"
    file.write_text(said.out, encoding="utf-8")
    rows = read_file(file)

    assert status == 0
    assert [row.span_id for row in rows] == [SPAN, "aa"]
    assert rows[0].stages == typical().stages
    assert rows[1].stages.decode is None
    assert said.err == "2 rows; 1 observation left out: not over, or not a request\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "yesterday"], "'yesterday' is not a time"),
        (["--from", TO.isoformat(), "--to", FROM.isoformat()], "--from is not before --to"),
    ],
)
def test_the_command_checks_times(monkeypatch, capsys, arguments, said):
    """An invalid window is reported before a request is sent."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    try:
        status = cli.main(["rows", "langfuse", *arguments])
    except SystemExit as stopped:
        status = stopped.code

    assert status == 2
    assert said in capsys.readouterr().err


def test_the_command_needs_the_keys(monkeypatch, capsys):
    """Without keys the command says which variable is missing."""
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)

    assert cli.main(["rows", "langfuse", "--from", FROM.isoformat()]) == 2
    assert "LANGFUSE_PUBLIC_KEY is not set" in capsys.readouterr().err


def test_without_the_package(monkeypatch):
    """The extra to install is named."""
    monkeypatch.setitem(__import__("sys").modules, "langfuse.api", None)

    with pytest.raises(ConfigError, match=r"\.\[langfuse\]"):
        read_rows(FROM, TO, project=Project(public_key="p", secret_key="s"))
