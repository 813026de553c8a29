"""Other people's clients and instrumentations, each as an application uses it.

A `Subject` is set up before `llmtrace.init` or after it, and then makes its requests; `program`
runs each case in a process of its own. Nothing is imported here: each subject names what it needs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

MESSAGES: Final = [{"role": "user", "content": "hi"}]
KEY: Final = "none"


@dataclass(frozen=True, slots=True)
class Subject:
    """A client or an instrumentation.

    Attributes:
        prepare: sets it up, given the server's address without a path; returns what `act` needs.
        act: makes a request, streamed or not, and returns the text that the application got.
        imports: what it needs, imported before the cases are forked.
        streams: the kinds of request to make.
        expects: row fields that differ from those of a chat by the OpenAI SDK; `None` = absent.
        rows: how many requests `act` makes.
    """

    prepare: Callable[[str], Any]
    act: Callable[[Any, bool], str]
    imports: tuple[str, ...] = ("openai",)
    streams: tuple[bool, ...] = (False, True)
    expects: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 1


# --- the SDKs -----------------------------------------------------------------------------------


def _openai(root: str) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{root}/v1", api_key=KEY, max_retries=0)


def _async_openai(root: str) -> Any:
    import openai

    return openai.AsyncOpenAI(base_url=f"{root}/v1", api_key=KEY, max_retries=0)


def _azure(root: str) -> Any:
    import openai

    return openai.AzureOpenAI(
        azure_endpoint=root, api_key=KEY, api_version="2024-10-21", max_retries=0
    )


def chat(client: Any, stream: bool) -> str:
    """Chat by the OpenAI SDK; return the text of the response."""
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, stream=stream)
    if not stream:
        return str(answer.choices[0].message.content)
    return "".join(one.choices[0].delta.content or "" for one in answer if one.choices)


async def async_chat(client: Any, stream: bool) -> str:
    """Chat by the async OpenAI SDK."""
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=stream)
    if not stream:
        return str(answer.choices[0].message.content)
    return "".join([one.choices[0].delta.content or "" async for one in answer if one.choices])


def _in_loop(client: Any, stream: bool) -> str:
    return asyncio.run(async_chat(client, stream))


def _responses(client: Any, stream: bool) -> str:
    answer = client.responses.create(model="tiny", input="hi", stream=stream)
    if not stream:
        return str(answer.output_text)
    return "".join(one.delta for one in answer if one.type == "response.output_text.delta")


def _anthropic(root: str) -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=root, api_key=KEY, max_retries=0)


def _messages(client: Any, stream: bool) -> str:
    given = {"model": "tiny", "messages": MESSAGES, "max_tokens": 16}
    if not stream:
        return str(client.messages.create(**given).content[0].text)
    with client.messages.stream(**given) as answer:
        return "".join(answer.text_stream)


# --- frameworks ---------------------------------------------------------------------------------


def _langchain(root: str) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model="tiny", base_url=f"{root}/v1", api_key=KEY, max_retries=0)


def _invoke(model: Any, stream: bool) -> str:
    if stream:
        return "".join(str(one.text) for one in model.stream("hi"))
    return str(model.invoke("hi").text)


def _langgraph(root: str) -> Any:
    from langgraph.graph import END, START, MessagesState, StateGraph

    model = _langchain(root)
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "model")
    graph.add_edge("model", END)
    return graph.compile()


def _graph(graph: Any, stream: bool) -> str:
    given = {"messages": MESSAGES}
    if not stream:
        return str(graph.invoke(given)["messages"][-1].text)
    return "".join(str(one.text) for one, _ in graph.stream(given, stream_mode="messages"))


def _llama_index(root: str) -> Any:
    from llama_index.llms.openai import OpenAI

    return OpenAI(model="gpt-4o", api_base=f"{root}/v1", api_key=KEY, max_retries=0)


def _complete(model: Any, stream: bool) -> str:
    if stream:
        return "".join(one.delta or "" for one in model.stream_complete("hi"))
    return str(model.complete("hi").text)


def _pydantic_ai(root: str) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{root}/v1", api_key=KEY)
    return Agent(OpenAIChatModel("tiny", provider=provider))


def _agent(agent: Any, stream: bool) -> str:
    async def streamed() -> str:
        async with agent.run_stream("hi") as answer:
            return "".join([one async for one in answer.stream_text(delta=True)])

    return asyncio.run(streamed()) if stream else str(agent.run_sync("hi").output)


def _agents_sdk(root: str) -> Any:
    import agents

    agents.set_tracing_disabled(True)
    model = agents.OpenAIChatCompletionsModel("tiny", _async_openai(root))
    return agents.Agent(name="answer", model=model)


def _runner(agent: Any, stream: bool) -> str:
    import agents

    if not stream:
        return str(agents.Runner.run_sync(agent, "hi").final_output)

    async def streamed() -> str:
        answer = agents.Runner.run_streamed(agent, "hi")
        async for _ in answer.stream_events():
            pass
        return str(answer.final_output)

    return asyncio.run(streamed())


def _instructor(root: str) -> Any:
    import instructor

    return instructor.from_openai(_openai(root), mode=instructor.Mode.JSON)


def _extract(client: Any, stream: bool) -> str:
    import pydantic

    text = pydantic.create_model("Said", text=(str, ...))
    given = {"model": "tiny", "messages": MESSAGES, "max_retries": 0}
    if not stream:
        return str(client.chat.completions.create(response_model=text, **given).text)
    found = ""
    for one in client.chat.completions.create_partial(response_model=text, **given):
        found = one.text or ""
    return found


def _litellm(root: str) -> Any:
    import litellm

    return partial(
        litellm.completion, model="openai/tiny", api_base=f"{root}/v1", api_key=KEY, num_retries=0
    )


def _completion(complete: Any, stream: bool) -> str:
    answer = complete(messages=MESSAGES, stream=stream)
    if not stream:
        return str(answer.choices[0].message.content)
    return "".join(one.choices[0].delta.content or "" for one in answer)


# What OpenTelemetry's own provider exported, where a subject has one.
provided: list[Any] = []


# --- other instrumentations ---------------------------------------------------------------------


def _with_provider() -> None:
    """Set up OpenTelemetry as an application does; its spans are kept in `provided`."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    class Kept(SpanProcessor):
        def on_end(self, span: Any) -> None:
            provided.append(span)

    provider = TracerProvider()
    provider.add_span_processor(Kept())
    trace.set_tracer_provider(provider)


def _instrumented(module: str, name: str) -> Callable[[str], Any]:
    """Return what sets up an OpenTelemetry instrumentation and then makes a client."""

    def prepare(root: str) -> Any:
        _with_provider()
        getattr(__import__(module, fromlist=[name]), name)().instrument()
        return _openai(root)

    return prepare


def _logfire(root: str) -> Any:
    import logfire

    logfire.configure(send_to_logfire=False, console=False)
    logfire.instrument_openai()
    return _openai(root)


def _langfuse(root: str) -> Any:
    from langfuse import Langfuse
    from langfuse.openai import OpenAI

    Langfuse(public_key="pk", secret_key="sk", base_url=root)
    return OpenAI(base_url=f"{root}/v1", api_key=KEY, max_retries=0)


def _langsmith(root: str) -> Any:
    os.environ |= {
        "LANGSMITH_TRACING": "true", "LANGSMITH_API_KEY": KEY, "LANGSMITH_ENDPOINT": root,
    }  # fmt: skip
    from langsmith.wrappers import wrap_openai

    return wrap_openai(_openai(root))


# --- ways to run --------------------------------------------------------------------------------

_PARALLEL: Final = 4


def _threads(client: Any, stream: bool) -> str:
    with ThreadPoolExecutor(_PARALLEL) as pool:
        said = {*pool.map(lambda _: chat(client, stream), range(_PARALLEL))}
    return said.pop() if len(said) == 1 else repr(said)


def _trio(client: Any, stream: bool) -> str:
    import trio

    return str(trio.run(async_chat, client, stream))


def _gevent(root: str) -> Any:
    from gevent import monkey

    monkey.patch_all()
    return _openai(root)


def _greenlets(client: Any, stream: bool) -> str:
    import gevent

    jobs = [gevent.spawn(chat, client, stream) for _ in range(_PARALLEL)]
    gevent.joinall(jobs, raise_error=True)
    said = {job.value for job in jobs}
    return said.pop() if len(said) == 1 else repr(said)


def _forked(client: Any, stream: bool) -> str:
    """Request in a child process that was forked off after everything was set up."""
    incoming, outgoing = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.write(outgoing, chat(client, stream).encode())
        os._exit(0)
    os.close(outgoing)
    os.waitpid(child, 0)
    with os.fdopen(incoming) as said:
        return said.read()


_AZURE: Final = {"provider": "azure.ai.openai"}
_RESPONSES: Final = {
    "finish_reason": "completed", "response_id": "resp_1", "cached_tokens": 4,
    "operation": None, "chunks": 6,
}  # fmt: skip
_MESSAGES: Final = {
    "provider": "anthropic", "client": "anthropic", "finish_reason": "end_turn",
    "response_id": "msg_1", "cached_tokens": 5, "queue_s": None, "prefill_s": None, "chunks": 6,
}  # fmt: skip
_OTEL: Final = "opentelemetry.instrumentation"

SUBJECTS: Final[Mapping[str, Subject]] = {
    "openai": Subject(_openai, chat),
    "openai-async": Subject(_async_openai, _in_loop),
    "openai-responses": Subject(_openai, _responses, expects=_RESPONSES),
    "azure": Subject(_azure, chat, expects=_AZURE),
    "anthropic": Subject(_anthropic, _messages, ("anthropic",), expects=_MESSAGES),
    "langchain": Subject(_langchain, _invoke, ("langchain_openai",)),
    "langgraph": Subject(_langgraph, _graph, ("langchain_openai", "langgraph.graph")),
    "llama-index": Subject(
        _llama_index, _complete, ("llama_index.llms.openai",), expects={"model": "gpt-4o"}
    ),
    "pydantic-ai": Subject(_pydantic_ai, _agent, ("pydantic_ai.models.openai",)),
    "agents-sdk": Subject(_agents_sdk, _runner, ("agents",)),
    "instructor": Subject(_instructor, _extract, ("instructor",), expects={"chunks": 7}),
    "litellm": Subject(_litellm, _completion, ("litellm",)),
    "langsmith": Subject(_langsmith, chat, ("openai", "langsmith.wrappers")),
    "langfuse": Subject(_langfuse, chat, ("openai", "langfuse")),
    "logfire": Subject(_logfire, chat, ("openai", "logfire")),
    "openinference": Subject(
        _instrumented("openinference.instrumentation.openai", "OpenAIInstrumentor"), chat,
        ("openai", "openinference.instrumentation.openai"),
    ),
    "openllmetry": Subject(
        _instrumented(f"{_OTEL}.openai", "OpenAIInstrumentor"), chat, ("openai", f"{_OTEL}.openai")
    ),
    "otel-httpx": Subject(
        _instrumented(f"{_OTEL}.httpx", "HTTPXClientInstrumentor"), chat,
        ("openai", f"{_OTEL}.httpx"),
    ),
    "threads": Subject(_openai, _threads, rows=_PARALLEL),
    "trio": Subject(_async_openai, _trio, ("openai", "trio")),
    "gevent": Subject(_gevent, _greenlets, (), rows=_PARALLEL),
    "fork": Subject(_openai, _forked),
}  # fmt: skip
