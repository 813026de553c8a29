"""Does the simulated engine have the shapes of vLLM's answers, as the SDKs read them?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from llmtrace.simulator.engine.scheduler import EngineConfig
from llmtrace.simulator.server import ServerConfig, SimulatedServer, serve

from .asking import FIGURES, MODEL, WHOLE_FIGURES, chat, extra_of, payloads, post, streamed


def test_chat_stream_has_vllms_chunks(engine: SimulatedServer) -> None:
    """Role, one chunk a token, the finish on the last, usage with figures, done."""
    response = post(engine, "/chat/completions", streamed(tokens=3))
    role, first, second, last, usage = payloads(response)

    assert response.text.endswith("data: [DONE]\n\n")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    common = {"id", "object", "created", "model", "choices", "system_fingerprint"}
    assert set(role) == common | {"prompt_token_ids", "prompt_text"}
    assert role["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    content = {"index", "delta", "logprobs", "finish_reason", "token_ids"}
    assert [content, content, content | {"stop_reason"}] == [
        set(chunk["choices"][0]) for chunk in (first, second, last)
    ]
    assert [chunk["choices"][0]["delta"]["content"] for chunk in (first, second, last)] == [
        "This",
        " text",
        " was",
    ]
    assert last["choices"][0]["finish_reason"] == "length"
    assert set(usage) == common | {"usage", "metrics"}
    assert usage["choices"] == []
    assert set(usage["metrics"]) == FIGURES
    assert set(usage["usage"]) == {
        "prompt_tokens",
        "total_tokens",
        "completion_tokens",
        "prompt_tokens_details",
    }
    assert set(usage["usage"]["prompt_tokens_details"]) == {
        "cached_tokens",
        "created_cache_tokens",
    }


def test_stream_without_include_usage_has_no_figures(engine: SimulatedServer) -> None:
    """Who does not ask for usage gets neither usage nor figures, as from vLLM."""
    response = post(engine, "/chat/completions", chat(stream=True, max_tokens=3))

    assert "metrics" not in response.text
    assert "usage" not in response.text


def test_continuous_usage_counts_tokens_on_every_chunk(engine: SimulatedServer) -> None:
    """With continuous usage each chunk says how many tokens there are so far."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = chat(stream=True, max_tokens=3, stream_options=options)

    received = [
        p["usage"]["completion_tokens"] for p in payloads(post(engine, "/chat/completions", body))
    ]

    assert received == [0, 1, 2, 3, 3]


def test_openai_sdk_streams_chat(client: openai.OpenAI) -> None:
    """The SDK reads the stream; the figures are extra fields of the usage chunk."""
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        max_completion_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
    )
    *_, last, usage = list(stream)

    assert last.choices[0].finish_reason == "length"
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 4
    assert set(extra_of(usage)["metrics"]) == FIGURES


def test_openai_sdk_reads_a_whole_chat(client: openai.OpenAI) -> None:
    """Without streaming the figures are a top-level field, and the answer ends by itself."""
    whole = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hello"}]
    )

    assert whole.choices[0].finish_reason == "stop"
    assert (whole.choices[0].message.content or "").startswith("This text was made up")
    assert set(extra_of(whole)["metrics"]) == WHOLE_FIGURES
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


def test_openai_sdk_streams_completions(client: openai.OpenAI) -> None:
    """The older completions endpoint streams the same figures."""
    stream = client.completions.create(
        model=MODEL,
        prompt="hello",
        max_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
    )
    *received, usage = list(stream)

    assert "".join(chunk.choices[0].text for chunk in received) == "This text was made"
    assert received[-1].choices[0].finish_reason == "length"
    assert set(extra_of(usage)["metrics"]) == FIGURES


def test_whole_completion(client: openai.OpenAI) -> None:
    """A completion without streaming carries text, usage and figures."""
    whole = client.completions.create(model=MODEL, prompt=["hello"], max_tokens=2)

    assert whole.choices[0].text == "This text"
    assert set(extra_of(whole)["metrics"]) == WHOLE_FIGURES


def test_openai_sdk_streams_responses(client: openai.OpenAI) -> None:
    """Events come in vLLM's order, numbered, and the last carries usage and figures."""
    stream = client.responses.create(
        model=MODEL, input="hello", instructions="be brief", max_output_tokens=2, stream=True
    )
    events: list[Any] = list(stream)

    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(10))
    response = events[-1].response
    assert response.output_text == "This text"
    assert response.status == "incomplete"
    assert response.usage.output_tokens == 2
    assert set(extra_of(response)["metrics"]) == WHOLE_FIGURES


def test_whole_response(client: openai.OpenAI) -> None:
    """A response without streaming is the same object the last event carries."""
    response = client.responses.create(
        model=MODEL, input=[{"role": "user", "content": "hello"}], max_output_tokens=2
    )

    assert response.output_text == "This text"
    assert set(extra_of(response)["metrics"]) == WHOLE_FIGURES


def test_anthropic_sdk_streams_messages(claude: anthropic.Anthropic) -> None:
    """Anthropic's events come in order and, as from vLLM, without figures."""
    stream = claude.messages.create(
        model=MODEL,
        max_tokens=2,
        system="be brief",
        messages=[{"role": "user", "content": "hello"}],
        stream=True,
    )
    events: list[Any] = list(stream)

    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[-2].delta.stop_reason == "max_tokens"
    assert events[-2].usage.output_tokens == 2
    assert not any("metrics" in event.model_dump_json() for event in events)


def test_whole_message(claude: anthropic.Anthropic) -> None:
    """A message without streaming holds the text and both token counts."""
    message: Any = claude.messages.create(
        model=MODEL, max_tokens=500, messages=[{"role": "user", "content": "hello"}]
    )

    assert message.stop_reason == "end_turn"
    assert message.content[0].text.startswith("This text was made up")
    assert message.usage.input_tokens > 0


def test_cached_prompt_tokens_are_reported() -> None:
    """An engine with a prefix cache reports the cached part of the prompt in every protocol."""
    warm = ServerConfig(engine=EngineConfig(base_s=0.001, prefix_hit_share=0.5))
    text = "word " * 200
    with serve(warm) as server:
        usage = payloads(post(server, "/chat/completions", streamed(text)))[-1]["usage"]
        anthropic_usage = post(server, "/messages", chat(text, max_tokens=1)).json()["usage"]

    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert 0.4 * usage["prompt_tokens"] < cached < 0.5 * usage["prompt_tokens"]
    assert anthropic_usage["cache_read_input_tokens"] == cached
    assert anthropic_usage["input_tokens"] == usage["prompt_tokens"] - cached


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", streamed()),
        ("/chat/completions", chat(max_tokens=2)),
        ("/completions", {"prompt": "hello", "max_tokens": 2, "stream": True}),
        ("/responses", {"input": "hello", "max_output_tokens": 2}),
        ("/messages", chat(max_tokens=2)),
    ],
)
def test_it_cannot_be_mistaken_for_a_real_engine(
    engine: SimulatedServer, path: str, body: dict[str, object]
) -> None:
    """Every answer names the simulation, in its headers and in its body."""
    response = post(engine, path, body)

    assert response.headers.get_list("server") == ["llmtrace-simulated-engine"]
    received = payloads(response) or [response.json()]
    fingerprints = {payload["system_fingerprint"] for payload in received}
    assert len(fingerprints) == 1
    assert fingerprints.pop().startswith("llmtrace-sim-")


@pytest.mark.parametrize(
    ("path", "body", "reply_id"),
    [
        ("/chat/completions", chat(max_tokens=1), "chatcmpl-lt-1"),
        ("/completions", {"prompt": "hello", "max_tokens": 1}, "cmpl-lt-1"),
        ("/messages", chat(max_tokens=1), "chatcmpl-lt-1"),
    ],
)
def test_request_id_is_honoured(
    engine: SimulatedServer, path: str, body: dict[str, object], reply_id: str
) -> None:
    """The client's request id is part of the reply's id and comes back as a header."""
    response = post(engine, path, body, x_request_id="lt-1")

    assert response.json()["id"] == reply_id
    assert response.headers["x-request-id"] == "lt-1"


def test_same_request_id_twice_at_once(engine: SimulatedServer) -> None:
    """Two open requests with one id do not get into each other's way."""
    with ThreadPoolExecutor(2) as pool:
        answers = list(
            pool.map(
                lambda tokens: post(
                    engine, "/chat/completions", streamed(tokens=tokens), x_request_id="twin"
                ),
                (20, 30),
            )
        )

    received = [payloads(answer)[-1]["usage"]["completion_tokens"] for answer in answers]
    assert received == [20, 30]


def test_models_and_health(client: openai.OpenAI, engine: SimulatedServer) -> None:
    """The model is listed under the name requests must use, and the server says it is well."""
    [model] = client.models.list().data

    assert (model.id, model.owned_by) == (MODEL, "llmtrace-simulated-engine")
    assert httpx2.get(engine.root + "/health").status_code == 200
