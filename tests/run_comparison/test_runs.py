"""Are two runs compared fairly: the same work, outcomes, answers, throughput and cost?"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmtrace.budget import read_budget
from llmtrace.cli import main
from llmtrace.core.errors import ConfigError, DataError, SourceError
from llmtrace.run_comparison import comparison_page, wording
from llmtrace.run_comparison.comparison_text import print_comparison
from llmtrace.run_comparison.conditions import read_condition
from llmtrace.run_comparison.read_run import read_run
from llmtrace.run_comparison.run_totals import cost_of
from llmtrace.run_comparison.runs import compare

from .made_runs import make_rows, write_run


class Terminal(io.StringIO):
    """A terminal that keeps what is printed on it."""

    def isatty(self):
        """Say that it is one."""
        return True


@pytest.fixture
def run(tmp_path):
    """Return a function that writes a run and reads it."""
    made = iter(range(100))

    def make(rows, **more):
        return read_run(write_run(tmp_path / f"run-{next(made)}", rows, **more))

    return make


def state(text, comparison):
    """Return what a condition comes to."""
    return read_condition(text).judge(comparison)[0]


def moved(comparison):
    """Return what moved, by name."""
    return {effect.name: effect.direction for effect in comparison.moved}


def test_a_slower_prefill_moves_prefill_ttft_and_e2e_alone(run):
    """Decode did not move, and is not said to have."""
    before, after = (
        run(make_rows(seed, 600, ttft=f), workload="a") for seed, f in ((1, 1), (2, 2))
    )
    found = moved(compare(before, after))
    assert found == {"ttft": "slower", "prefill": "slower", "e2e": "slower"}


def test_one_workload_is_not_weighted(run):
    """The hash of both says so."""
    comparison = compare(run(make_rows(1), workload="a"), run(make_rows(2), workload="a"))
    assert comparison.workload.same
    assert not comparison.workload.reweighted


def test_another_mix_is_weighted(run):
    """Twice as many long prompts, which take twice as long: no stage became slower."""

    def mix(seed, long):
        short = make_rows(seed, 600 - long, prompt_tokens=100)
        return short + make_rows(seed + 10, long, ttft=2, prompt_tokens=4000)

    comparison = compare(run(mix(1, 150)), run(mix(2, 400)))
    assert comparison.workload.reweighted
    assert moved(comparison) == {}
    with pytest.raises(DataError, match="different work"):
        compare(run(mix(1, 150)), run(mix(2, 400)), reweight=False)


def test_work_with_nothing_in_common_is_refused(run):
    """Short prompts say nothing of long ones."""
    with pytest.raises(DataError, match=r"only the run after has prompt_tokens"):
        compare(run(make_rows(1, prompt_tokens=50)), run(make_rows(2, prompt_tokens=9000)))


def test_the_same_names_in_another_order_are_the_same_work(run):
    """A file numbers its words in the order they come in; a tenant is known by its name."""
    rare, often = (
        make_rows(seed, count, tenant=name)
        for seed, count, name in ((1, 40, "rare"), (2, 360, "often"))
    )
    rows = [*rare, *often]
    comparison = compare(run(rows), run(sorted(rows, key=lambda row: -row["start"])))
    assert not comparison.workload.reweighted


def test_a_refusal_names_the_reason_that_there_is(run):
    """Where no request is of a new kind it is not said how many are."""

    def mix(short):
        return run(
            make_rows(1, short, prompt_tokens=100) + make_rows(2, 600 - short, prompt_tokens=4000)
        )

    with pytest.raises(DataError, match="different work to do: weights would leave"):
        compare(mix(570), mix(30))


def test_requests_that_do_not_stream_are_seen_at_their_end(run):
    """First content is e2e there, and TTFT is not compared."""
    whole = make_rows(1, stream=False)
    for row in whole:
        del row["ttft_s"]
    comparison = compare(run(whole, workload="a"), run(make_rows(2), workload="a"))
    assert moved(comparison)["first_content"] == "faster"
    assert "ttft" not in {effect.name for effect in comparison.effects}


def test_other_answers_are_said(run):
    """A speed-up with other answers is marked, where it is first read."""
    rows = make_rows(1)
    before = run(make_rows(2, ttft=2), answers={0: "aa", 1: "bb", 2: "cc"})
    after = run(rows, answers={0: "aa", 1: "xx", 3: "dd"})
    comparison = compare(before, after)
    assert comparison.answers == (0.5, 2)
    assert any("50.0% of 2" in text for text in wording.sentences(comparison))
    assert "faster at p50" in wording.headline(comparison)
    assert "But 1 of 2 answers are others" in wording.headline(comparison)
    assert "But" not in wording.headline(compare(after, before))  # slower


def test_answers_of_other_requests_or_drawn_by_chance_are_not_compared(run):
    """In another workload a number is another request; a temperature makes answers differ."""
    rows, one = make_rows(1), {0: "aa"}
    assert compare(run(rows, answers=one, workload="a"),
                   run(rows, answers=one, workload="b")).answers is None  # fmt: skip
    warm = [run(rows, answers=one, workload="a", temperature=0.7) for _ in range(2)]
    assert compare(*warm).answers is None
    cold = [run(rows, answers=one, workload="a", temperature=0.0) for _ in range(2)]
    assert compare(*cold).answers == (1.0, 1)


def test_shorter_answers_and_other_ends_are_other_answers(run):
    """Less work is faster; chance alone is no difference."""
    before = run(make_rows(1, ttft=2), workload="a")
    short = make_rows(2)
    for i, row in enumerate(short):
        row |= {"output_tokens": 30 + i % 3, "finish_reason": "length"}
    comparison = compare(before, run(short, workload="a"))
    assert "answers have 51.0 tokens before and 31.0 after" in wording.headline(comparison)
    assert "0% end with 'length' before, 100% after" in wording.headline(comparison)
    assert compare(before, run(make_rows(3), workload="a")).other_answers == ()


def test_what_was_changed_beside_is_listed(run):
    """Settings of the load and facts of the engine; not what each run has of its own."""
    rows = make_rows(1)
    first = run(rows, model="a", settings={"seed": 1, "turns": 1}, ended="1", endpoint=None)
    second = run(rows, model="b", settings={"seed": 2, "turns": 1}, ended="2")
    found = compare(first, second)
    assert found.changed == [("model", "a", "b"), ("settings seed", "1", "2")]
    assert any("model: a → b; settings seed: 1 → 2" in text for text in wording.sentences(found))


def test_signals_are_means_rates_and_mean_times(run):
    """A gauge's mean, a counter's growth, a histogram's mean over the run; no unix time."""

    def samples(scale):
        return [
            {"t": 1000.0 + i, "instance": "e", "signal": name, "value": value}
            for i in range(11)
            for name, value in (
                ("running", 4.0 * scale), ("prompt_tokens", 5000 + 100 * i * scale),
                ("queue_sum", 7 + 0.5 * i * scale), ("queue_count", 50 + i), ("waiting", 0),
                ("started", 1.7e9), ("waiting_by_reason", 3),
            )
        ]  # fmt: skip

    rows = make_rows(1)
    found = compare(run(rows, signals=samples(1)), run(rows, signals=samples(2)))
    assert found.signals == {
        "running": (4, 8), "prompt_tokens a second": (100, 200), "mean queue": (0.5, 1.0)
    }  # fmt: skip
    assert ("mean queue", "0.5", "1") in wording.signal_rows(found)
    assert compare(run(rows, signals=samples(1)), run(rows)).signals["running"] == (4, None)
    assert "Engines and GPUs" in comparison_page.page(found)


def test_throughput_is_of_all_of_one_request_and_of_a_gpu(run):
    """Side by side, and in the JSON."""
    rows = make_rows(1)
    found = compare(run(rows, gpus=2), run(rows, gpus=4))
    first = found.totals[0]
    assert first.speed == pytest.approx(sorted(51 / row["e2e_s"] for row in rows)[200], rel=0.01)
    assert wording.per_gpu(found) == (first.tokens_per_s / 2, first.tokens_per_s / 4)
    assert wording.as_dict(found)["tokens_per_s_per_gpu"] == wording.per_gpu(found)
    assert any(name.endswith("a GPU (2 and 4)") for name, *_ in wording.totals_rows(found))


def test_more_failures_are_shown(run):
    """And failed requests are in no duration."""
    rows = make_rows(2)
    for row in rows[::4]:
        row |= {"outcome": "error", "error_type": "500", "e2e_s": 90.0}
    comparison = compare(run(make_rows(1), workload="a"), run(rows, workload="a"))
    assert comparison.failures_differ
    assert moved(comparison) == {}
    assert state("failures > 5%", comparison) == "failed"
    assert state("failures > 30%", comparison) == "passed"


def test_a_price_becomes_a_cost(run):
    """Of tokens, and of requests inside the budget."""
    comparison = compare(
        run(make_rows(1)), run(make_rows(2)), price_per_hour=10,
        budget=read_budget({"ttft": "300ms"}),
    )  # fmt: skip
    first = comparison.totals[0]
    tokens, _ = comparison.costs["a million output tokens"]
    assert tokens == pytest.approx(10 / 3600 / first.tokens_per_s * 1e6)
    assert 0 < first.inside < first.succeeded
    inside, _ = comparison.costs["a thousand requests inside the budget"]
    assert inside == pytest.approx(10 / 3600 / first.goodput * 1000)


def test_a_figure_that_is_quoted_wrongly():
    """$32.77 an hour at 32.5 tokens/s is $280.09 a million, not $2.82."""
    assert cost_of(1_000_000, 32.5, 32.77) == pytest.approx(280.09, abs=0.005)
    assert cost_of(1_000_000, None, 32.77) is None


def test_turns_and_nested_requests_are_no_requests(run):
    """They would count the same time twice."""
    rows = make_rows(1, 50)
    odd = make_rows(2, 50, operation="invoke_agent") + make_rows(3, 50, nested=True)
    assert compare(run(rows + odd), run(rows)).totals[0].requests == 50


def test_a_run_without_success_is_an_error(run):
    """It is named."""
    with pytest.raises(DataError, match="run-0: no request succeeded"):
        compare(run(make_rows(1, outcome="error")), run(make_rows(2)))


@pytest.mark.parametrize("about", ["{", "[]", "[" * 99_999])
def test_an_odd_bench_file_is_an_error(tmp_path, about):
    """Whatever it holds, the error is ours."""
    folder = write_run(tmp_path / "odd", make_rows(1, 20))
    (folder / "bench.json").write_text(about)
    with pytest.raises(DataError, match=r"bench\.json"):
        read_run(folder)


def test_what_is_not_there_is_an_error(tmp_path):
    """It is named."""
    with pytest.raises(SourceError, match="missing"):
        read_run(tmp_path / "missing")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft.p50 > 10%", "failed"), ("ttft.p50 > 400%", "passed"), ("ttft.p95>100ms", "failed"),
        ("decode.p50 > -50%", "undecided"), ("decode.p50 > 1%", "undecided"),
        ("decode.p50 < -1%", "undecided"), ("ttft.p50 < 10%", "passed"),
    ],
)  # fmt: skip
def test_a_condition_fails_on_what_is_shown(run, text, expected):
    """A change beyond the limit fails if it is more than chance, and nothing else does."""
    comparison = compare(run(make_rows(1)), run(make_rows(2, ttft=2)))
    assert state(text, comparison) == expected


def shortly_slow(seed, factor):
    """Return the durations of 500 requests, a quarter of which, in a row, wait so much longer."""
    rows = []
    for i, row in enumerate(make_rows(seed, 500)):
        wait = row["ttft_s"] * (factor - 1 if 200 <= i < 325 else 0)
        slower = {name: row[name] + wait for name in ("ttft_s", "e2e_s")}
        kept = ("start", "outcome", "stream", "tpot_s")
        rows.append({name: row[name] for name in kept} | slower)
    return rows


def test_a_guard_is_judged_by_the_interval_of_its_own_figure(run, tmp_path, capsys):
    """A p95 that doubled in a part of the run, which the tests of all durations do not show."""
    before = shortly_slow(3, 1)
    comparison = compare(run(before), run(shortly_slow(4, 3)))
    assert moved(comparison) == {}
    assert state("ttft.p95 > 10%", comparison) == "failed"
    assert wording.headline(comparison).startswith(
        "No difference shown across all figures; taken alone, as 1 in 20 would by chance, these "
        "moved: TTFT p95 +"
    )
    (ttft,) = [effect for effect in comparison.effects if effect.name == "ttft"]
    assert "taken alone, p95 and p99 moved; at p50 only one above" in wording.verdict(ttft)

    paths = [write_run(tmp_path / name, rows) for name, rows in (("b", before), ("a", before))]
    assert main(["compare", *map(str, paths), "--fail-if", "ttft.p95 > 5%"]) == 0
    printed = capsys.readouterr()
    assert "No difference shown.\n" in printed.out
    assert "llmtrace: undecided: ttft.p95 > 5%: TTFT p95 0" in printed.err


@pytest.mark.parametrize(
    ("width", "lacks"),
    [(80, "p95, p99, changes of p95 and p99"), (130, "changes of p95 and p99"), (170, None)],
)
def test_a_narrow_terminal_says_what_it_leaves_out(run, width, lacks):
    """No column vanishes without a word."""
    out = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        print_comparison(out, compare(run(make_rows(1)), run(make_rows(2))))
    said = " ".join(out.getvalue().split())
    assert (f"No room for {lacks}: a pipe, or 170 columns," in said) is (lacks is not None)
    assert ("No room" in said) is (lacks is not None)


def test_a_file_is_called_what_it_was_given_as(tmp_path, monkeypatch):
    """No folder is put before it; of a very long path the end is kept."""
    (tmp_path / "rows.jsonl").write_text(json.dumps(make_rows(1, 1)[0]))
    monkeypatch.chdir(tmp_path)
    assert read_run(Path("rows.jsonl")).name == "rows.jsonl"
    long = tmp_path / ("x" * 100) / "rows.jsonl"
    long.parent.mkdir()
    long.write_text((tmp_path / "rows.jsonl").read_text())
    assert read_run(long).name.endswith("x/rows.jsonl")


def test_a_condition_that_cannot_be_judged_is_an_error(run):
    """A guard that is silent for lack of data would pass whatever happens."""
    few = compare(run(make_rows(1, 50)), run(make_rows(2, 50)))
    with pytest.raises(DataError, match="50 requests are too few"):
        read_condition("ttft.p99 > 10%").judge(few)
    with pytest.raises(DataError, match="do not both report gateway"):
        read_condition("gateway.p50 > 10%").judge(few)


def test_a_condition_on_what_was_zero_or_is_another_by_definition(run):
    """A stage that is 0 no more fails any share; what streams has its first content at TTFT."""
    rows = [row | {"queue_s": 0.0} for row in make_rows(1)]
    waits = [row | {"queue_s": 0.2, "e2e_s": row["e2e_s"] + 0.2} for row in make_rows(2)]
    assert state("queue.p50 > 1%", compare(run(rows), run(rows))) == "passed"
    assert state("queue.p50 > 500%", compare(run(rows), run(waits))) == "failed"
    slower = compare(run(make_rows(1)), run(make_rows(2, ttft=2)))
    assert state("first_content.p50 > 10%", slower) == "failed"


@pytest.mark.parametrize(
    "text", ["failures > 5ms", "", "ttft > 10%", "speed.p50 > 1%", "ttft.p75 > 1%", "ttft.p50>1"]
)
def test_what_is_no_condition_is_an_error(text):
    """With an example of one."""
    with pytest.raises(ConfigError, match=r"ttft\.p95 > 10%"):
        read_condition(text)


def test_the_command_prints_draws_and_fails(tmp_path, capsys):
    """Exit status 10 where a condition holds; JSON and the page agree with the text."""
    before = write_run(tmp_path / "before", make_rows(1), workload="a")
    after = write_run(tmp_path / "<b>after", make_rows(2, ttft=2), workload="a")
    page = tmp_path / "page.html"
    options = ["compare", str(before), str(after), "--fail-if", "ttft.p50 > 10%"]
    assert main([*options, "--html", str(page)]) == 10
    printed = capsys.readouterr()
    assert "TTFT is slower" in printed.out
    assert "failed: ttft.p50 > 10%" in printed.err
    text = page.read_text()
    assert "TTFT is slower" in text
    assert "<b>after" not in text
    assert main([*options[:3], "--json", "--fail-if", "ttft.p50 > 5000ms"]) == 0
    found = json.loads(capsys.readouterr().out)
    [one] = found["fail_if"]
    assert (one["condition"], one["state"]) == ("ttft.p50 > 5000ms", "passed")
    assert re.fullmatch(r"TTFT p50 \+[\d,.]+ ms \[\+[\d,.]+, \+[\d,.]+\]", one["figures"])
    assert [e["direction"] for e in found["effects"] if e["name"] == "ttft"] == ["slower"]


def test_the_page_draws_every_duration(run):
    """As two curves each."""
    comparison = compare(run(make_rows(1)), run(make_rows(2)))
    page = comparison_page.page(comparison)
    assert page.count('<path class="before"') == len(comparison.effects) + 1
    assert "http" not in page.replace("http-equiv", "")


def written(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Write rows to a file."""
    path.write_text("".join(f"{json.dumps(one)}\n" for one in rows), encoding="utf-8")
    return path


def plain_rows(count: int = 200, **fields: Any) -> Iterator[dict[str, Any]]:
    """Yield rows of requests that streamed, of a tenth of a second to the first token."""
    for i in range(count):
        yield {
            "start": 1_700_000_000 * 10**9 + i * 10**9, "outcome": "success",
            "ttft_s": 0.1 + i % 7 / 1000, "e2e_s": 2.0 + i % 11 / 1000, **fields,
        }  # fmt: skip


def test_a_first_token_that_is_not_known_is_not_the_end(tmp_path):
    """A streamed request without `ttft_s` did not show its first content as late as its last."""
    before = written(tmp_path / "before.jsonl", plain_rows())
    rows = ({**one, "ttft_s": None} if i % 2 else one for i, one in enumerate(plain_rows()))
    after = written(tmp_path / "after.jsonl", rows)
    found = compare(read_run(before), read_run(after))

    assert not moved(found)
    assert any("no ttft: 0 of 200 before, 100 of 200 after" in one for one in found.warnings)


def test_what_is_odd_in_files_is_said(tmp_path, capsys):
    """As by triage: unknown keys, with what may be meant."""
    before = written(tmp_path / "before.jsonl", plain_rows())
    after = written(tmp_path / "after.jsonl", plain_rows(prompt_tokns=3))

    assert main(["compare", str(before), str(after)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in ("prompt_tokns", "Did you mean 'prompt_tokens'?", "after.jsonl)"):
        assert words in said


def test_runs_without_a_duration_in_common_cannot_be_compared(tmp_path, capsys):
    """What could not be read shows no difference, and that is not that there is none."""
    before = written(tmp_path / "before.jsonl", plain_rows())
    rows = ({"start": one["start"], "outcome": "success", "ttft": 0.1} for one in plain_rows())
    after = written(tmp_path / "after.jsonl", rows)

    assert main(["compare", str(before), str(after)]) == 1
    out, err = capsys.readouterr()
    assert "nothing can be compared" in err
    assert "ttft" in err
    assert "No difference" not in out


def test_too_few_requests_are_not_called_no_difference(run):
    """Of eight requests each, no difference would have been shown."""
    few = [run(make_rows(seed, 8), workload="a") for seed in (1, 2)]

    assert wording.headline(compare(*few)).startswith("Too few requests")
