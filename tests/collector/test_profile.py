"""Are profiles checked to the last key, and are ours complete?"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from llmtrace.core.errors import ConfigError
from llmtrace_collector.signals.definitions import SIGNALS
from llmtrace_collector.signals.profile import (
    builtin_profiles,
    load_profiles,
    parse_profile,
    parse_version,
    show_version,
)

GOOD = """
engine: mine
title: My engine
kind: engine
path: /metrics
prefix: "my:"
recognise: ["my:running"]
labels: {model: [model_name], replica: [rank]}
signals:
  running: [{name: "my:running", evidence: docs}]
"""


def profile_with(**changes: object) -> str:
    """Return a good profile with other keys; `None` takes one away."""
    content = {**yaml.safe_load(GOOD), **changes}
    return yaml.safe_dump({key: value for key, value in content.items() if value is not None})


def test_every_engine_gateway_and_exporter_has_a_profile():
    """What the documents promise is there, engines first."""
    assert [one.engine for one in builtin_profiles()] == [
        "llama_cpp", "sglang", "tgi", "triton_trtllm", "trtllm_serve", "vllm",
        "dynamo", "envoy_ai_gateway", "litellm", "llm_d", "production_stack", "vllm_router",
        "amd_gpu", "dcgm",
    ]  # fmt: skip


def test_every_signal_has_a_source():
    """A signal that only our own GPU reader gives is named here, all others are in a profile."""
    given = {name for one in builtin_profiles() for name in one.signals}
    by_nvml = {"gpu_throttled", "gpu_power_limit", "gpu_sm_clock_max", "gpu_xid_errors"}

    assert set(SIGNALS) - given == by_nvml


def test_exposed_names_are_each_one_signal_s_and_carry_their_unit():
    """Counters end in `_total`; durations are seconds."""
    names = [signal.metric for signal in SIGNALS.values()]

    assert len(names) == len(set(names))
    for signal in SIGNALS.values():
        assert signal.metric.endswith("_total") == (signal.kind == "counter"), signal


def test_engines_say_of_every_stage_whether_they_have_it():
    """Of what makes the stages, a profile has the name or says why there is none."""
    for one in builtin_profiles():
        if one.kind == "engine":
            shown = {*one.signals, *one.absent}
            assert {"queue", "prefill", "decode", "ttft", "itl", "e2e"} - shown == set(), (
                one.engine
            )


def test_names_begin_with_their_prefix():
    """Only llm-d's old names begin otherwise."""
    for one in builtin_profiles():
        odd = {
            family.name
            for _, _, family in one.families()
            if not family.name.startswith(one.prefix)
        }
        assert not {name for name in odd if not name.startswith("inference_")}, one.engine


def test_vllm_s_versions_are_those_of_its_releases():
    """Where the sampled releases say when a name was there, the profile says the same."""
    listed = {}
    for line in (Path(__file__).parent / "data" / "releases.txt").read_text().splitlines():
        name, since, until = line.split()
        listed[name] = (since, until)
    vllm = next(one for one in builtin_profiles() if one.engine == "vllm")
    for _, _, family in vllm.families():
        if family.help is None:  # those tell two units of one name apart
            since, until = (
                listed[family.name.removesuffix("_total")]
                if (family.name.removesuffix("_total") in listed)
                else listed[family.name]
            )
            assert show_version(family.since) == since, family.name
            assert (show_version(family.until) if family.until else "0.33.0") == until, family.name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine": None}, "engine: must be a text"),
        ({"kind": "server"}, "kind: 'server' is none of engine, gateway, gpu"),
        ({"colour": "red"}, "unknown key 'colour'; there are engine, title"),
        ({"path": "metrics"}, "path: 'metrics' must start with /"),
        ({"recognise": []}, "recognise: name at least one metric"),
        ({"recognise": ["a b"]}, "recognise: 'a b' is not the name of a metric"),
        ({"labels": {"gpu": ["x"]}}, "labels: unknown key 'gpu'; there are model, replica"),
        ({"signals": {}}, "signals: a profile without a signal reads nothing"),
        ({"signals": {"speed": []}}, "signals: unknown key 'speed'"),
        ({"signals": {"running": {}}}, "signals.running: must be a list"),
        (
            {"signals": {"running": [{"name": "a", "evidence": "hearsay"}]}},
            r"signals.running\[0\].evidence: 'hearsay' is none of seen, source, docs, memory",
        ),
        (
            {"signals": {"running": [{"name": "a", "evidence": "docs", "unit": "hours"}]}},
            r"signals.running\[0\].unit: 'hours' is none of ns, us, ms",
        ),
        (
            {"signals": {"running": [{"name": "a", "evidence": "docs", "since": "new"}]}},
            r"signals.running\[0\].since: 'new' is not a version",
        ),
        (
            {"signals": {"running": [{"name": "a", "evidence": "docs", "since": 0.6}]}},
            r"since: must be a text, not 0.6; quote it",
        ),
        (
            {"signals": {"running": [
                {"name": "a", "evidence": "docs", "since": "2.0.0", "until": "1.0.0"}]}},
            r"until: is before since",
        ),
        (
            {"signals": {"running": [{"name": "a", "evidence": "docs", "also": True}]}},
            r"also: there is none before it",
        ),
        (
            {"signals": {"running": [{"name": "a", "evidence": "docs", "say": "x"}]}},
            r"running has no label of its own; drop label and say",
        ),
        (
            {"signals": {"finished": [{"name": "a", "evidence": "docs"}]}},
            r"finished needs label \(where its reason is\) or say",
        ),
        (
            {"signals": {"running": [{"name": "a", "evidence": "docs", "per_block": True}]}},
            r"per_block: needs kv_cache",
        ),
        ({"absent": {"running": "it is shy"}}, "absent: running is among the signals too"),
        ({"advice": [{"set": "x", "why": "y", "probe": "missing"}]}, "needs the signal it"),
        ({"advice": [{"set": "x", "why": "y", "probe": "guess"}]}, "probe: 'guess' is none of"),
    ],
)  # fmt: skip
def test_a_wrong_profile_says_what_is_wrong_and_where(changes, words):
    """File, key, and what would do."""
    with pytest.raises(ConfigError, match=f"mine.yaml: .*{words}"):
        parse_profile(profile_with(**changes), "mine.yaml")


@pytest.mark.parametrize(
    "text", ["- a\n", "", "a: [", "&a [*a]", "x: !!python/object:os.system {}"]
)
def test_what_is_no_profile_at_all(text):
    """Other YAML, and what is none."""
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        parse_profile(text, "mine.yaml")


def test_a_folder_of_one_s_own(tmp_path: Path):
    """Its profiles come beside ours, and instead of those with the same name."""
    (tmp_path / "mine.yaml").write_text(GOOD)
    (tmp_path / "vllm.yaml").write_text(GOOD.replace("engine: mine", "engine: vllm"))
    found = {one.engine: one for one in load_profiles(tmp_path)}

    assert found["mine"].title == "My engine"
    assert found["vllm"].title == "My engine"
    assert found["sglang"].title == "SGLang"


def test_a_folder_without_profiles(tmp_path: Path):
    """A wrong path is an error, not ignored."""
    with pytest.raises(ConfigError, match=r"no \*\.yaml in it"):
        load_profiles(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.32.0", (0, 32, 0)), ("v1.2", (1, 2)), ("0.10.2.dev3+cpu", (0, 10, 2))],
)
def test_versions(text, version):
    """What follows the numbers is left out."""
    assert parse_version(text) == version
