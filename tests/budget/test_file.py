"""Is a budget read as meant and written as it is read, each slip reported with its place?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.budget import Budget, read_budget, read_budgets
from llmtrace.budget.file import as_plain, as_yaml
from llmtrace.core.errors import ConfigError
from tests.budget.strategies import budgets

seconds = st.floats(1e-6, 1e6)
# Whatever a parser of YAML or JSON may come up with.
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=5)
    | st.dates(),
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(st.text(), inside, max_size=2),
    max_leaves=4,
)


def refused(given_: object) -> str:
    """Return the message a budget is rejected with."""
    with pytest.raises(ConfigError) as caught:
        read_budget(given_)  # type: ignore[arg-type]
    return str(caught.value)


def written(folder: Path, text: str, name: str = "budget.yaml") -> Path:
    """Write a budget file."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# --- what is read -------------------------------------------------------------------------------

YAML = """
name: chat
objective: p99
total: 2.5s
ttft: 1
tpot: 30ms
tokens: 50
buffer: 0.2
stages:
  queue: 150ms
  decode: 2m
"""
CHAT = Budget(
    name="chat",
    objective=0.99,
    total_s=2.5,
    ttft_s=1.0,
    tpot_s=0.03,
    tokens=50,
    buffer_s=0.2,
    stages_s={"queue": 0.15, "decode": 120.0},
)


def test_a_yaml_file(tmp_path):
    """A budget is read from YAML, with its units."""
    assert read_budget(written(tmp_path, YAML)) == CHAT


def test_a_json_file_given_as_text(tmp_path):
    """A budget is read from JSON, and a path may be plain text."""
    content = {
        "name": "chat", "objective": 0.99, "total": "2.5s", "ttft": 1, "tpot": ".03", "tokens": 50,
        "buffer": "200ms", "stages": {"queue": "0.15", "decode": "2 m"},
    }  # fmt: skip

    assert read_budget(str(written(tmp_path, json.dumps(content), "b.json"))) == CHAT


def test_an_empty_mapping_sets_no_limit():
    """What a budget does not mention has no limit, and p95 is the objective."""
    assert read_budget({}) == Budget()


def test_null_is_the_same_as_missing():
    """A key left empty, as in `total:`, reads as if it were not there."""
    keys = ("name", "objective", "total", "ttft", "tpot", "tokens", "stages", "buffer")

    assert read_budget(dict.fromkeys(keys)) == Budget()
    assert read_budget({"stages": {"queue": None}}) == Budget()


def test_a_buffer_may_be_nothing():
    """Nothing may be kept free, though no request may be expected to take no time."""
    assert read_budget({"buffer": 0}).buffer_s == 0.0


@given(seconds)
def test_seconds_as_a_number_or_as_text(value):
    """A duration reads the same as a number of seconds and as text with a unit."""
    text = f"{value:.9f}"

    assert read_budget({"total": float(text)}) == read_budget({"total": f"{text}s"})
    assert read_budget({"total": f" {text} ms "}).total_s == pytest.approx(value / 1e3, abs=1e-12)


@given(st.floats(0.001, 99.9).map(lambda share: round(share, 3)))
def test_an_objective_as_a_quantile(percent):
    """An objective may be written as p99.9 or as 0.999."""
    assert read_budget({"objective": f"p{percent}"}).objective == pytest.approx(percent / 100)


# --- what is rejected ---------------------------------------------------------------------------


@given(
    st.dictionaries(st.text(max_size=9) | st.sampled_from(["total", "stages", "name"]), anything)
)
def test_anything_is_a_budget_or_a_config_error(content):
    """No content raises anything but `ConfigError`."""
    try:
        budget = read_budget(content)
    except ConfigError:
        return

    assert all(limit > 0 for limit in budget.thresholds_s().values())


@given(st.sampled_from(["objective", "total", "ttft", "tpot", "tokens", "buffer"]), anything)
def test_a_wrong_value_is_reported_with_its_place(key, value):
    """The message says which key, and what would do."""
    try:
        read_budget({key: value})
    except ConfigError as error:
        message = str(error)
    else:
        return

    assert message.startswith(f"budget: {key}: ")
    assert "write " in message or "as in " in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"totl": 1}, "budget: unknown key totl; a budget has name, objective, total"),
        ({1: 2}, "budget: unknown key 1; a budget has"),
        ({"stages": {"prefil": 1}}, "budget: unknown stage 'prefil'; the stages are network"),
        ({"stages": ["queue"]}, "budget: stages must map a stage to a duration, as in {prefill"),
        ({"stages": 0}, "budget: stages must map a stage to a duration"),
        ({"stages": {"queue": "fast"}}, "budget: stages.queue: 'fast' is not a duration; write"),
        ({"total": 0}, "budget: total: 0 is not a duration; write 250ms"),
        ({"total": "1h"}, "budget: total: '1h' is not a duration"),
        ({"total": float("nan")}, "budget: total: nan is not a duration"),
        ({"total": True}, "budget: total: True is not a duration"),
        ({"buffer": -1}, "budget: buffer: -1 is not a duration"),
        ({"tokens": 0}, "budget: tokens: 0 is not a whole number of output tokens, as in 50"),
        ({"tokens": 2.5}, "budget: tokens: 2.5 is not a whole number"),
        ({"tokens": True}, "budget: tokens: True is not a whole number"),
        ({"objective": 95}, "budget: objective: 95 is not a quantile; write p95, or 0.95"),
        ({"objective": "p0"}, "budget: objective: 'p0' is not a quantile"),
        ({"name": ""}, "budget: name: '' is not a name; write a short one"),
        ({"name": ["chat"]}, "budget: name: ['chat'] is not a name"),
        (5, "budget: 5 is neither a mapping nor the path of a YAML or JSON file"),
    ],
)
def test_a_slip_is_explained(content, expected):
    """A slip is reported with the error, its place, and a correct value."""
    assert refused(content).startswith(expected)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("b.yaml", "total: 1\ntotl: 2", "unknown key totl"),
        ("b.yaml", "just words", "a budget is a mapping with the keys name, objective"),
        ("b.yaml", "", "a budget is a mapping"),
        ("b.yaml", "a: [", "not YAML: "),
        (
            "b.yaml",
            "total: 1s\nttft: 1s\ntotal: 2s",
            "not YAML: line 3: 'total' is given twice",
        ),
        ("b.yaml", "stages: {queue: 1s, queue: 1s}", "not YAML: line 1: 'queue' is given twice"),
        ("b.yaml", "total: 2020-13-45", "not YAML: month must be in 1..12"),
        ("b.yaml", "total: !!python/object:os.system x", "not YAML: "),
        ("b.yaml", "[" * 400, "not YAML: "),
        ("b.json", "{", "not JSON: "),
        ("b.json", "[" * 100_000, "not JSON: "),
        ("b.json", "[]", "a budget is a mapping"),
        ("b.yaml", "a" * (1 << 20) + "bc", "larger than 1 MiB, which no budget is"),
    ],
)
def test_a_broken_file_is_named(tmp_path, name, text, expected):
    """What is wrong in a file is reported with the file's path."""
    path = written(tmp_path, text, name)

    assert refused(path).startswith(f"{path}: {expected}")


def test_merged_keys_are_not_given_twice(tmp_path):
    """What is merged may be overridden, as YAML has it."""
    text = """budgets:
  - {name: a, total: 9s, stages: &s {queue: 1s}}
  - {name: b, total: 9s, stages: {<<: *s, queue: 2s}}
"""

    found = read_budgets(written(tmp_path, text))

    assert [one.stages_s["queue"] for one in found] == [1, 2]


def test_a_file_that_is_not_there(tmp_path):
    """A missing file, a folder and text of no encoding are distinguished by the system's words."""
    odd = tmp_path / "odd.yaml"
    odd.write_bytes(b"\xff\xfe\xfa")

    assert refused(tmp_path / "none.yaml").startswith(f"{tmp_path}/none.yaml: cannot read this")
    assert refused(tmp_path).startswith(f"{tmp_path}: cannot read this budget: ")
    assert "cannot read this budget: 'utf-8'" in refused(odd)
    assert "cannot read this budget" in refused("nul\0.yaml")


def test_yaml_without_its_package(tmp_path, monkeypatch):
    """Without the package that reads YAML, the message says which extra brings it."""
    monkeypatch.setitem(sys.modules, "yaml", None)

    assert "python -m pip install '.[demo]'" in refused(written(tmp_path, YAML))


# --- several ------------------------------------------------------------------------------------


def test_several_budgets_in_a_file(tmp_path):
    """A list of budgets: each with whom it is for; every limit of each becomes a bound."""
    budgets = read_budgets(
        written(
            tmp_path,
            "budgets:\n"
            "  - {name: chat, ttft: 700ms, total: 2s, model: [llama-*, gpt-4o], route: chat}\n"
            "  - {name: batch, total: 60s, availability: 99.5%, stages: {queue: 30s}}\n",
        )
    )

    assert [one.name for one in budgets] == ["chat", "batch"]
    assert budgets.thresholds_s() == {"e2e": (2.0, 60.0), "ttft": (0.7,), "queue": (30.0,)}
    assert budgets.allocations_s() == {
        "chat": {"total": 2.0, "ttft": 0.7},
        "batch": {"queue": 30.0, "total": 60.0},
    }
    assert budgets.all[1].availability == 0.995


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"budgets": []}, "budget: budgets is a list of budgets, and then all there is"),
        ({"budgets": [{}], "total": 1}, "budget: budgets is a list of budgets"),
        ({"budgets": ["x"]}, "budget: budgets[0]: a budget is a mapping"),
        ({"budgets": [{}, {"tpot": "x"}]}, "budget: budgets[1]: tpot: 'x' is not a duration"),
        ({"budgets": [{}, {}]}, "budget: 2 budgets are called 'default'; name them apart"),
        ({"budgets": [{}, {"name": "b"}]}, "budget: contains several budgets (default, b)"),
        ({"availability": "often"}, "budget: availability: 'often' is not a share"),
        ({"availability": 99}, "budget: availability: 99 is not a share of the requests"),
        ({"model": []}, "budget: model: [] is not a name or a list of names, as in llama-*"),
        ({"route": [1]}, "budget: route: [1] is not a name or a list of names, as in chat"),
    ],
)
def test_a_slip_in_several_is_explained(content, expected):
    """With which of them it is."""
    assert refused(content).startswith(expected)


# --- what is written -----------------------------------------------------------------------------


@given(budgets)
def test_a_budget_is_written_as_it_is_read(budget):
    """What `as_plain` and `as_yaml` write reads back the same."""
    import yaml

    plain = as_plain(budget)

    assert as_plain(read_budget(plain)) == plain
    assert yaml.safe_load(as_yaml(budget, ("a remark",))) == plain


# --- what it costs ------------------------------------------------------------------------------


def test_an_application_with_a_budget_loads_what_a_budget_is_and_no_more():
    """Suggestions, reports and pages need numpy and rich; an application need not have them."""
    program = """
import sys, llmtrace
llmtrace.init("app", budget={"total": "2s"}, exporters=[])
print(*sorted(name for name in sys.modules if name.startswith("llmtrace.budget.")))
print(*({"numpy", "rich"} & {*sys.modules}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == "llmtrace.budget.file llmtrace.budget.model\n\n"
