"""The endpoints of the simulated engine, and the path of a request through them.

The ASGI application, without the server under it. Every response says
`server: llmtrace-simulated-engine`, so it cannot be mistaken for a real one.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import threading
import time
import uuid
from collections import Counter as RequestMetrics
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmtrace.core.errors import DataError
from llmtrace.simulator.api import fault_header
from llmtrace.simulator.api.chat_api import CHAT, COMPLETIONS
from llmtrace.simulator.api.messages_api import MESSAGES
from llmtrace.simulator.api.reply_plan import ServerConfig, plan_reply, unique
from llmtrace.simulator.api.request_body import RejectedError, parse_body
from llmtrace.simulator.api.responses_api import RESPONSES
from llmtrace.simulator.api.stream import read_figures, stream_bytes
from llmtrace.simulator.api.wire_format import SERVER, Dialect, Reply
from llmtrace.simulator.engine.metrics import record_step
from llmtrace.simulator.engine.prometheus import PrometheusMeter, gpu_metrics
from llmtrace.simulator.engine.realtime import LiveEngine
from llmtrace.simulator.engine.scheduler import Figures, Request

_DIALECTS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)


@dataclass(slots=True)
class Service:
    """What the endpoints of one application share; `change` gives it another configuration."""

    config: ServerConfig
    live: LiveEngine
    registry: CollectorRegistry
    ready: threading.Event = field(default_factory=threading.Event)
    turned_away: RequestMetrics[str] = field(default_factory=RequestMetrics)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    draws: Iterator[int] = field(default_factory=itertools.count)

    def change(self, config: ServerConfig) -> None:
        """Continue with another configuration, from the next request and the next step on."""
        self.config = config
        self.live.config = config.engine


def make_service(config: ServerConfig | None = None) -> Service:
    """Put an engine and its meters together."""
    config = config or ServerConfig()
    meter = PrometheusMeter(config.model)
    live = LiveEngine(config.engine, partial(record_step, meter))
    meter.read_from(live, config.fingerprint)
    return Service(config, live, meter.registry)


def make_app(service: Service) -> ASGIApp:
    """Return the ASGI application of a service; its lifespan runs the engine."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        running = asyncio.create_task(service.live.run())
        service.ready.set()
        yield
        running.cancel()
        await asyncio.wait({running})

    routes = [
        Route(dialect.path, partial(_reply, service, dialect), methods=["POST"])
        for dialect in _DIALECTS
    ]
    routes += [
        Route("/v1/models", partial(_models, service)),
        Route("/health", _health),
        Route("/metrics", partial(_metrics, service)),
        Route("/gpu/metrics", partial(_gpu_metrics, service)),
    ]
    return _front(Starlette(routes=routes, lifespan=lifespan), service)


def _front(app: ASGIApp, service: Service) -> ASGIApp:
    """Stand before the application: label every response, and play the gateway."""

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id")
        scope["request_id"] = given.decode("latin-1") if given else uuid.uuid4().hex[:16]
        labels = [
            (b"server", SERVER.encode()),
            (b"x-request-id", scope["request_id"].encode("latin-1")),
        ]
        if service.config.gateway_s and scope["path"].startswith("/v1/"):
            entered_s = time.monotonic()
            await asyncio.sleep(service.config.gateway_s)
            spent_ms = 1e3 * (time.monotonic() - entered_s)
            labels.append((b"server-timing", f"gateway;dur={spent_ms:.3f}".encode()))

        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *labels]}
            await send(message)

        # Returning in the middle of a body makes the server close the connection.
        with suppress(fault_header.StreamDroppedError):
            await app(scope, receive, labelled)

    return front


async def _reply(service: Service, dialect: Dialect, http: HttpRequest) -> ASGIApp:
    """Read one request and answer it, or refuse it in the words of its protocol."""
    arrived_s = time.monotonic()
    kept = dialect.keeps_request_id
    request_id = http.scope["request_id"] if kept else uuid.uuid4().hex[:16]
    try:
        ask = dialect.read(parse_body(await http.body()))
        faults = _faults_of(service, http)
        reply, request = plan_reply(
            service.config, dialect, ask, faults=faults, request_id=request_id, arrived_s=arrived_s
        )
        request = unique(request, next(service.numbers))
        if not ask.stream:
            figures = await _whole_figures(service, http, request, reply, faults)
            return JSONResponse(dialect.whole(reply, figures))
    except RejectedError as refused:
        body = dialect.refusal(refused)
        return JSONResponse(body, refused.status, refused.headers)

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        # A client that goes away ends the response, and with it the request in the engine.
        with service.live.answering(request) as inbox:
            chunks = stream_bytes(dialect, reply, inbox, faults)
            await StreamingResponse(chunks, media_type="text/event-stream")(scope, receive, send)

    return stream


def _faults_of(service: Service, http: HttpRequest) -> fault_header.Faults:
    """Read the faults of one request, and turn it away if that is the first of them."""
    header = http.headers.get(fault_header.HEADER, "")
    try:
        faults = fault_header.read_faults(header, service.config.faults)
    except DataError as error:
        raise RejectedError(400, str(error), fault_header.HEADER) from error
    key = header if "reject_first" in header else ""
    if service.turned_away[key] < faults.reject_first:
        service.turned_away[key] += 1
        wait_s = faults.retry_after_s
        headers = {
            "retry-after": str(math.ceil(wait_s)),
            "retry-after-ms": str(round(1e3 * wait_s)),
        }
        raise RejectedError(429, f"simulated rate limit; come back in {wait_s:g} s", None, headers)
    # A generator of its own for each request: the draw does not depend on earlier requests.
    chance = random.Random(1_000_003 * service.config.engine.seed + next(service.draws))  # noqa: S311
    if chance.random() < service.config.reject_share:
        wait = {"retry-after": str(math.ceil(faults.retry_after_s))}
        raise RejectedError(429, "simulated rate limit", None, wait)
    if chance.random() < service.config.break_share:
        return replace(faults, error_after=1 + chance.randrange(service.config.answer_tokens))
    return faults


async def _whole_figures(
    service: Service,
    http: HttpRequest,
    request: Request,
    reply: Reply,
    faults: fault_header.Faults,
) -> Figures:
    """Wait until a whole answer is made, as long as the client waits too."""
    with service.live.answering(request) as inbox:
        gone = asyncio.ensure_future(_disconnected(http))
        done = asyncio.ensure_future(read_figures(reply, inbox, faults))
        try:
            await asyncio.wait({gone, done}, return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                raise RejectedError(499, "the client closed the connection")
            return done.result()
        except (
            fault_header.EngineFailedError,
            fault_header.StreamCutError,
            fault_header.StreamDroppedError,
        ) as failed:
            raise RejectedError(500, str(failed)) from failed
        finally:
            gone.cancel()
            done.cancel()


async def _disconnected(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def _models(service: Service, _: HttpRequest) -> Response:
    model = {
        "id": service.config.model,
        "object": "model",
        "created": 0,
        "owned_by": SERVER,
        "max_model_len": service.config.engine.max_model_len,
    }
    return JSONResponse({"object": "list", "data": [model]})


async def _health(_: HttpRequest) -> Response:
    return Response()


async def _metrics(service: Service, _: HttpRequest) -> Response:
    return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)


async def _gpu_metrics(service: Service, _: HttpRequest) -> Response:
    """Answer as dcgm-exporter would for a GPU that runs this engine."""
    page = gpu_metrics(service.config.gpu_clock, is_busy=bool(service.live.state.running))
    return Response(page, media_type=CONTENT_TYPE_LATEST)
