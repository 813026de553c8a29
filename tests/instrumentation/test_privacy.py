"""No part of a prompt, a response, a tool's argument or a key leaves the process by default.

Everything that was said holds a canary, whatever becomes of the request. Then every byte that any
exporter sent, and every line that was logged, is searched for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest

import llmtrace
from llmtrace.core.content import ContentPolicy
from llmtrace.exporters.console.sink import console_sink, waterfall
from llmtrace.exporters.genai_metrics.sink import GenAISink
from llmtrace.exporters.otlp.sink import otlp_sink
from llmtrace.exporters.prometheus.sink import PrometheusSink
from llmtrace.testing import capture
from tests.exporters.receivers import Receiver, http_receiver
from tests.support.internal_errors import reset_internal_errors
from tests.support.sse_server import Answer, Request, Script, Server

from . import answers
from .reading import _NO_TLS, CALLS, client, method

pytest.importorskip("openai")
pytest.importorskip("anthropic")

CANARY = "c4n4ry"
SAID = f"the {CANARY} sings"
ENDPOINTS = list(CALLS)


class Watch:
    """Every way out of the process, and what came out of it."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._registry = CollectorRegistry()
        self._console = io.StringIO()
        self._logged = io.StringIO()
        self._handler = logging.StreamHandler(self._logged)
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
        self.sinks = [
            otlp_sink(endpoint=receiver.url, interval_s=0.01),
            GenAISink(environ=environ),
            PrometheusSink(registry=self._registry),
            console_sink(self._console, interval_s=0.01),
        ]
        self._drawn: list[str] = []

    @contextlib.contextmanager
    def on(self, **options: Any) -> Iterator[None]:
        """Watch what is done inside, down to the last debug message."""
        logger = logging.getLogger("llmtrace")
        before, propagate = logger.level, logger.propagate
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(self._handler)
        reset_internal_errors()
        try:
            with capture(sinks=self.sinks, **options) as rows:
                yield
            for row in rows:
                self._drawn += [repr(row), json.dumps(row.as_dict()), waterfall(row)]
        finally:
            logger.removeHandler(self._handler)
            logger.setLevel(before)
            logger.propagate = propagate
            reset_internal_errors()

    def everything(self) -> bytes:
        """Return all that came out since the last time."""
        assert all(sink.flush(10) for sink in self.sinks)
        sent = b"".join(
            one.message.SerializeToString() + repr(one.headers).encode()  # type: ignore[attr-defined]
            for one in self._receiver.requests
        )
        assert sent
        self._receiver.requests.clear()
        written = [self._console.getvalue(), self._logged.getvalue(), *self._drawn]
        for stream in (self._console, self._logged):
            stream.seek(0)
            stream.truncate()
        self._drawn.clear()
        return sent + generate_latest(self._registry) + "\n".join(written).encode()

    def close(self) -> None:
        """Stop the exporters."""
        for sink in self.sinks:
            sink.close()


@pytest.fixture(scope="module")
def watch() -> Iterator[Watch]:
    """Set every exporter up once."""
    with http_receiver() as receiver:
        made = Watch(receiver)
        yield made
        made.close()


# --- what may become of a request ---------------------------------------------------------------


def _chat(*, finish: str | None) -> Script:
    return answers.chat((SAID, SAID), finish=finish)


def _echo(status: int) -> Script:
    """Refuse a request by quoting it, as some servers do."""

    def script(request: Request, answer: Answer) -> None:
        answer.whole({"error": {"message": json.dumps(request.body), "type": SAID}}, status=status)

    return script


def _error_event(_request: Request, answer: Answer) -> None:
    """Fail inside a 200 response, quoting it."""
    answer.event(answers.delta(SAID))
    answer.event({"error": {"message": SAID, "type": SAID, "code": SAID}})
    error = {"type": "error", "error": SAID, "message": SAID, "code": SAID}
    answer.event({**error, "sequence_number": 1}, name="error")


def _nonsense(_request: Request, answer: Answer) -> None:
    """Respond with things where others belong."""
    answer.event({**answers.delta(SAID), "usage": SAID})
    answer.event({"choices": SAID, "type": SAID, "delta": SAID})
    answer.event({"type": "message_start", "message": SAID})
    failed = answers.response_object("failed", error={"code": SAID, "message": SAID})
    answer.event({"type": "response.failed", "response": failed}, name="response.failed")
    answer.event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": [SAID]}})
    answer.event(f"{{broken JSON {SAID}")


def _reset(_request: Request, answer: Answer) -> None:
    answer.event(answers.delta(SAID))
    answer.reset()


def _protocols(request: Request, answer: Answer) -> None:
    """Respond correctly in each protocol."""
    for end, script in (
        ("/chat/completions", _chat(finish="stop")),
        ("/completions", answers.completion),
        ("/responses", answers.responses),
        ("/messages", answers.messages),
    ):
        if request.path.endswith(end):
            script(request, answer)
            return


OUTCOMES: dict[str, Script] = {
    "as it should be": _protocols,
    "truncated": _chat(finish=None),
    "refused": _echo(400),
    "overloaded": _echo(503),
    "failing inside": _error_event,
    "nonsense": _nonsense,
    "reset": _reset,
}

# Prompts, with the canary in every text.
REQUEST: dict[str, dict[str, Any]] = {
    "chat": {
        "messages": [{"role": "system", "content": SAID}, {"role": "user", "content": SAID}],
        "tools": [{"type": "function", "function": {"name": "f", "description": SAID}}],
        "user": CANARY,
    },
    "completions": {"prompt": SAID, "suffix": SAID},
    "responses": {"input": SAID, "instructions": SAID},
    "messages": {"messages": [{"role": "user", "content": SAID}], "system": SAID},
}


class Trap:
    """An argument that fails when it is looked at, quoting what it holds."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError(SAID)


@llmtrace.tool
def tool(argument: Any, *, fails: bool) -> Any:
    """Run a tool that is given and gives the canary, or fails with it."""
    if fails:
        raise ValueError(argument)
    return argument


def run(server: Server, endpoint: str, *, mode: str, stream: bool, leave: bool) -> None:
    """Make one request with the canary in all of it, and let nothing it raises out."""
    options = {
        "api_key": f"sk-{CANARY}",
        "default_headers": {"x-secret": CANARY, "cookie": CANARY},
        "timeout": 5,
    }
    sdk = CALLS[endpoint][0]

    def sync() -> None:
        with client("sync", server, sdk, **options) as made:
            create, fixed = method(made, endpoint)
            answer = create(**{**fixed, "stream": stream, **REQUEST[endpoint]})
            for _ in answer if stream else ():
                if leave:
                    break

    async def main() -> None:
        async with client("async", server, sdk, **options) as made:
            create, fixed = method(made, endpoint)
            answer = await create(**{**fixed, "stream": stream, **REQUEST[endpoint]})
            if stream:
                async for _ in answer:
                    if leave:
                        break

    with contextlib.suppress(Exception):
        sync() if mode == "sync" else asyncio.run(main())


@llmtrace.trace
def raw(server: Server) -> Iterator[bytes]:
    """Stream the same without any SDK."""
    headers = {"authorization": f"Bearer {CANARY}"}
    body = {"model": "tiny", "stream": True, **REQUEST["chat"]}
    url = f"{server.url}/chat/completions"
    with (
        httpx.Client(verify=_NO_TLS) as made,
        made.stream("POST", url, json=body, headers=headers, timeout=5) as answer,
    ):
        answer.raise_for_status()
        yield from answer.iter_bytes()


cases = st.fixed_dictionaries(
    {
        "endpoint": st.sampled_from([*ENDPOINTS, "raw"]),
        "outcome": st.sampled_from(list(OUTCOMES)),
        "mode": st.sampled_from(["sync", "async"]),
        "stream": st.booleans(),
        "leave": st.booleans(),
        "decorated": st.booleans(),
        "fails": st.booleans(),
    }
)


def do(server: Server, case: dict[str, Any]) -> None:
    """Run a turn with a tool and a request, as a case says."""
    server.play(OUTCOMES[case["outcome"]])

    def request() -> None:
        if case["endpoint"] == "raw":
            with contextlib.suppress(httpx.HTTPError):
                list(raw(server))
            return
        run(
            server,
            case["endpoint"],
            mode=case["mode"],
            stream=case["stream"],
            leave=case["leave"],
        )

    act: Callable[[], None] = llmtrace.trace(request) if case["decorated"] else request
    with contextlib.suppress(ValueError), llmtrace.turn("agent", session="s"):
        act()
        tool(Trap(), fails=False)
        tool(SAID, fails=case["fails"])
        tool(f"again {SAID}", fails=False)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases)
@example(
    {
        "endpoint": "raw", "outcome": "failing inside", "mode": "sync", "stream": True,
        "leave": False, "decorated": False, "fails": True,
    }
)  # fmt: skip
@example(
    {
        "endpoint": "responses", "outcome": "nonsense", "mode": "sync", "stream": True,
        "leave": False, "decorated": True, "fails": True,
    }
)  # fmt: skip
@example(
    {
        "endpoint": "chat", "outcome": "failing inside", "mode": "sync", "stream": True,
        "leave": False, "decorated": True, "fails": True,
    }
)  # fmt: skip
def test_nothing_leaves_unasked(server: Server, watch: Watch, faulty: None, case: Any) -> None:
    """Whatever becomes of a request, no exporter and no log has a word of it."""
    with watch.on():
        do(server, case)

    out = watch.everything()
    assert b"invoke_agent" in out
    assert CANARY.encode() not in out


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_nothing_reaches_an_applications_own_provider(
    server: Server, outcome: str, faulty: None
) -> None:
    """Neither its spans nor its metrics."""
    exported, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    sink = GenAISink(meter_provider=MeterProvider([reader]))
    with capture(tracer_provider=provider, sinks=[sink]):
        for endpoint in ENDPOINTS:
            case = {"endpoint": endpoint, "outcome": outcome, "mode": "sync", "stream": True}
            do(server, {**case, "leave": False, "decorated": False, "fails": True})
    sink.close()
    metrics = reader.get_metrics_data()
    assert metrics is not None
    spans = exported.get_finished_spans()
    out = "".join(span.to_json() for span in spans) + metrics.to_json()
    provider.shutdown()

    assert "execute_tool" in out
    assert CANARY not in out


def test_what_is_asked_for_is_on_spans_alone(server: Server, watch: Watch, faulty: None) -> None:
    """With content recorded spans have it; metrics, console, logs and rows in print do not."""
    case = {"endpoint": "chat", "outcome": "as it should be", "mode": "sync", "stream": True}
    with watch.on(content=ContentPolicy()):
        do(server, {**case, "leave": False, "decorated": False, "fails": False})
    otlp, genai, prometheus, console = watch.sinks
    assert all(sink.flush(10) for sink in watch.sinks)
    spans = [one for one in watch._receiver.requests if one.path.endswith("/traces")]
    in_spans = b"".join(one.message.SerializeToString() for one in spans)  # type: ignore[attr-defined]
    watch._receiver.requests[:] = [one for one in watch._receiver.requests if one not in spans]
    genai.write(llmtrace.testing.make_row())
    del otlp, prometheus, console

    assert in_spans.count(CANARY.encode()) >= 4
    assert f"sk-{CANARY}".encode() not in in_spans
    assert CANARY.encode() not in watch.everything()


def test_redacted_content_has_no_secret(server: Server, watch: Watch, faulty: None) -> None:
    """What the user's hook takes out is in nothing that is sent."""
    policy = ContentPolicy(redact=lambda text: text.replace(CANARY, "[secret]"))
    case = {"endpoint": "messages", "outcome": "as it should be", "mode": "sync", "stream": False}
    with watch.on(content=policy):
        do(server, {**case, "leave": False, "decorated": False, "fails": False})

    out = watch.everything()
    assert b"[secret]" in out
    assert CANARY.encode() not in out
