"""What does an engine's span report, and what does our plugin's?"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core.stages import EngineFigures, Reported
from llmtrace.engines.join import join
from llmtrace.engines.spans import ENGINE_ID, ENGINE_SOURCE, read_engine_span, read_plugin_span
from llmtrace.engines.vllm_plugin.finished import finished_request
from llmtrace.engines.vllm_plugin.stat_logger import _engine
from llmtrace.testing import make_row

LATENCIES = {
    "gen_ai.latency.time_in_queue": 0.040,
    "gen_ai.latency.time_in_model_prefill": 0.090,
    "gen_ai.latency.time_in_model_decode": 0.780,
    "gen_ai.latency.time_in_model_inference": 0.870,
    "gen_ai.latency.time_to_first_token": 0.160,
    "gen_ai.latency.e2e": 0.950,
}
MARK = {ENGINE_SOURCE: "engine_plugin", ENGINE_ID: "chatcmpl-lt-01"}
MS = 1_000_000

odd = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just([1])
attributes = st.dictionaries(
    st.sampled_from(
        [
            *LATENCIES,
            *MARK,
            "gen_ai.usage.input_tokens",
            "llmtrace.preemptions",
            "llmtrace.replica",
        ]
    ),
    odd,
)


def test_an_engines_own_span():
    """Queue, prefill and decode as they are; the front end is the rest of TTFT."""
    assert read_engine_span(LATENCIES) == EngineFigures(
        queue=Reported(40 * MS, "engine_span"),
        prefill=Reported(90 * MS, "engine_span"),
        decode=Reported(780 * MS, "engine_span"),
        frontend=Reported(30 * MS, "engine_span"),
    )


def test_sglangs_prefill_holds_its_queue_and_is_none():
    """Queued 2.0 s and prefilled 0.12: without `time_in_queue` its 2.12 s are no prefill."""
    figures = read_engine_span(
        {
            "gen_ai.latency.time_to_first_token": 2.15,
            "gen_ai.latency.time_in_model_prefill": 2.12,
            "gen_ai.latency.time_in_model_decode": 1.0,
            "gen_ai.latency.e2e": 3.15,
        }
    )

    assert figures == EngineFigures(decode=Reported(1000 * MS, "engine_span"))


def test_a_plugins_span():
    """It also reports tokens, preemptions and the replica; the front end is e2e's remainder."""
    read = read_plugin_span(
        {
            **LATENCIES,
            **MARK,
            "gen_ai.usage.input_tokens": 512,
            "gen_ai.usage.cache_read.input_tokens": 256,
            "gen_ai.usage.output_tokens": 64,
            "llmtrace.preemptions": 1,
            "llmtrace.replica": "pod-7",
        }
    )

    assert read == (
        "chatcmpl-lt-01",
        EngineFigures(
            queue=Reported(40 * MS, "engine_plugin"),
            prefill=Reported(90 * MS, "engine_plugin"),
            decode=Reported(780 * MS, "engine_plugin"),
            frontend=Reported(40 * MS, "engine_plugin"),
            prompt_tokens=512,
            cached_tokens=256,
            output_tokens=64,
            preemptions=1,
            replica="pod-7",
            engine="pod-7",
        ),
    )


def test_the_row_says_that_its_queue_may_hold_a_transfer():
    """With a KV connector vLLM's queue holds the wait for remote KV: its name is on the row."""
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector="NixlConnector"))
    stats = SimpleNamespace(
        request_id="chatcmpl-lt-01", queued_time=0.22, prefill_time=0.015, inference_time=3.015,
        decode_time=3.0, e2e_latency=3.3,
    )  # fmt: skip
    span = finished_request(stats, _engine(config, "vllm"), finished_at=1e9)
    assert span is not None

    [joined] = join([make_row(response_id="chatcmpl-lt-01")], [read_plugin_span(span.attributes)])
    [plain] = join([make_row(response_id="chatcmpl-lt-01")], [("chatcmpl-lt-01", EngineFigures())])
    assert (joined.kv_connector, plain.kv_connector) == ("NixlConnector", None)
    assert joined.as_dict()["kv_connector"] == "NixlConnector"


def test_what_a_plugin_did_not_tell_is_unknown():
    """An older vLLM reports less; nothing becomes 0."""
    assert read_plugin_span(MARK) == ("chatcmpl-lt-01", EngineFigures())


@pytest.mark.parametrize("missing", MARK)
def test_another_span_is_no_record(missing):
    """Without our mark, or without an id, a span is not the plugin's."""
    assert read_plugin_span({**LATENCIES, **MARK, missing: None}) is None


def test_a_span_without_figures_tells_nothing():
    """TTFT alone cannot be split."""
    assert read_engine_span({"gen_ai.latency.time_to_first_token": 0.160}) is None


@given(attributes)
def test_whatever_is_in_a_span_it_can_be_read(given_attributes):
    """What comes over the wire may be anything; what cannot be a duration or count is unknown."""
    figures = [read_engine_span(given_attributes)]
    if (record := read_plugin_span({**given_attributes, **MARK})) is not None:
        figures.append(record[1])

    for one in figures:
        for part in (one.queue, one.prefill, one.decode, one.frontend) if one else ():
            assert part is None or 0 <= part.ns < 86_400 * 1000 * MS
