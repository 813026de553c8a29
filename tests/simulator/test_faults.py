"""Does the simulated engine inject exactly the faults it is configured with?"""

from __future__ import annotations

import json
import time
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from llmtrace.simulator.engine.scheduler import EngineConfig
from llmtrace.simulator.server import Faults, ServerConfig, SimulatedServer, serve

from .asking import FAST, MODEL, chat, faulty, metric, payloads, post, streamed


def test_gateway_reports_its_own_time() -> None:
    """The simulated gateway delays what is behind it and says by how much."""
    with serve(ServerConfig(engine=FAST, gateway_s=0.05)) as server:
        started_s = time.perf_counter()
        response = post(server, "/chat/completions", streamed(tokens=1))
        took_s = time.perf_counter() - started_s
        figures = payloads(response)[-1]["metrics"]
        ttft_s = metric(server, "vllm:time_to_first_token_seconds_sum")

    name, _, spent_ms = response.headers["server-timing"].partition(";dur=")
    assert name == "gateway"
    assert 50 <= float(spent_ms) < 1e3 * took_s
    assert ttft_s < 0.05
    assert figures["queue_time_ms"] < 50


def test_no_gateway_no_report(engine: SimulatedServer) -> None:
    """Without a gateway there is no Server-Timing header, rather than a zero."""
    assert "server-timing" not in post(engine, "/chat/completions", streamed()).headers


def test_sdk_retries_through_rate_limits(engine: SimulatedServer) -> None:
    """The first two attempts get 429 with Retry-After; the SDK's third gets the answer."""
    faults = faulty("reject_first=2, retry_after_s=0.01")
    refused = httpx2.post(
        engine.url + "/chat/completions",
        json=chat(),
        headers=faulty("reject_first=1, retry_after_s=0.5"),
    )
    with openai.OpenAI(base_url=engine.url, api_key="none", max_retries=2) as patient:
        raw = patient.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=[{"role": "user", "content": "x"}],
            max_tokens=1,
            extra_headers=faults,
        )

    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["retry-after-ms"] == "500"
    assert raw.retries_taken == 2


def test_configured_rate_limit_counts_all_requests() -> None:
    """A server set to reject the first request rejects one, of any client."""
    config = ServerConfig(engine=FAST, faults=Faults(reject_first=1))
    with serve(config) as server:
        statuses = [
            post(server, "/chat/completions", chat(max_tokens=1)).status_code for _ in range(2)
        ]

    assert statuses == [429, 200]


def test_error_inside_the_stream(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    """An error event after two tokens makes each SDK raise in the middle of a 200."""
    faults = faulty("error_after=2")
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "x"}],
        stream=True,
        extra_headers=faults,
    )
    text = []
    with pytest.raises(openai.APIError, match="after 2 output tokens"):  # noqa: PT012
        for chunk in stream:
            text.append(chunk.choices[0].delta.content)
    assert text == ["", "This", " text"]

    messages = claude.messages.create(
        model=MODEL,
        max_tokens=9,
        messages=[{"role": "user", "content": "x"}],
        stream=True,
        extra_headers=faults,
    )
    with pytest.raises(anthropic.APIError, match="after 2 output tokens"):
        list(messages)

    *_, error = client.responses.create(model=MODEL, input="x", stream=True, extra_headers=faults)
    assert error.type == "error"


def test_error_in_a_whole_answer_is_a_status(engine: SimulatedServer) -> None:
    """Without a stream the same fault is an HTTP 500."""
    response = post(engine, "/chat/completions", chat(), x_llmtrace_sim="error_after=2")

    assert response.status_code == 500
    assert response.json()["error"]["type"] == "InternalServerError"


@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/responses", "/messages"])
def test_cut_stream_ends_without_finish(engine: SimulatedServer, path: str) -> None:
    """A cut ends the body cleanly after two tokens: no finish reason, no usage, no done."""
    body = streamed(tokens=9) | {"prompt": "x", "input": "x"}
    response = post(engine, path, body, x_llmtrace_sim="cut_after=2")

    assert response.status_code == 200
    assert " text" in response.text
    assert " was" not in response.text
    for ending in ("[DONE]", '"length"', "response.completed", "message_stop"):
        assert ending not in response.text


def test_dropped_connection_is_a_protocol_error(engine: SimulatedServer) -> None:
    """A drop closes the connection in the middle of the chunked body."""
    with pytest.raises(httpx2.RemoteProtocolError):
        post(engine, "/chat/completions", streamed(), x_llmtrace_sim="drop_after=2")


def test_keep_alive_comments_fill_the_wait() -> None:
    """Comment lines come before the first token, and the SDK does not mind them."""
    slow = ServerConfig(engine=EngineConfig(base_s=1.0), faults=Faults(keep_alive_s=0.02))
    with serve(slow) as server:
        lines = post(server, "/chat/completions", streamed(tokens=2)).text.split("\n\n")
        with openai.OpenAI(base_url=server.url, api_key="none") as sdk:
            stream = sdk.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "x"}],
                max_tokens=2,
                stream=True,
            )
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert lines[:3] == [": keep-alive"] * 3
    assert text == "This text"


def test_reasoning_comes_first(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    """Reasoning deltas come before text, in each protocol's own shape."""
    faults = faulty("reasoning_tokens=2")
    chunks = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "x"}],
        max_tokens=4,
        stream=True,
        extra_headers=faults,
    )
    deltas = [chunk.choices[0].delta.model_dump(exclude_unset=True) for chunk in chunks]
    blocks = claude.messages.create(
        model=MODEL,
        max_tokens=4,
        messages=[{"role": "user", "content": "x"}],
        extra_headers=faults,
    ).content
    response = client.responses.create(
        model=MODEL, input="x", max_output_tokens=4, extra_headers=faults
    )

    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "This"},
        {"reasoning_content": " text"},
        {"content": " was"},
        {"content": " made"},
    ]
    assert [block.type for block in blocks] == ["thinking", "text"]
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == 2


def test_tool_calls_stream_as_deltas(client: openai.OpenAI) -> None:
    """Two tool calls come in pieces that join to valid JSON, for the tool on offer."""
    parameters: dict[str, object] = {"type": "object", "properties": {"query": {"type": "string"}}}
    with client.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": "x"}],
        tools=[{"type": "function", "function": {"name": "find", "parameters": parameters}}],
        extra_headers=faulty("tool_calls=2"),
    ) as stream:
        choice = stream.get_final_completion().choices[0]

    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    assert [call.function.name for call in choice.message.tool_calls] == ["find", "find"]
    assert all(
        list(json.loads(call.function.arguments)) == ["query"]
        for call in choice.message.tool_calls
    )


def test_tool_calls_in_the_other_protocols(
    client: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    """Anthropic's stream and the Responses API carry the same two calls."""
    faults = faulty("tool_calls=2")
    with claude.messages.stream(
        model=MODEL,
        max_tokens=500,
        messages=[{"role": "user", "content": "x"}],
        extra_headers=faults,
    ) as stream:
        message: Any = stream.get_final_message()
    with client.responses.stream(model=MODEL, input="x", extra_headers=faults) as events:
        response: Any = events.get_final_response()

    assert message.stop_reason == "tool_use"
    assert [set(block.input) for block in message.content] == [{"query"}, {"query"}]
    assert [json.loads(item.arguments).keys() for item in response.output] == [{"query"}] * 2
