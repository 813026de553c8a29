"""What do engines' own counts show of recorded incidents, without a row? See also tests/real."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from rich.console import Console

from llmtrace.cli import main
from llmtrace.core.errors import DataError
from llmtrace.dataset.case import Case, Window, no_signals, read_case, signals_from
from llmtrace.dataset.columns import Doubt, empty, from_dicts
from llmtrace.triage.causes import RULES
from llmtrace.triage.pipeline import Settings
from llmtrace.triage.result import CAUSES, Finding
from llmtrace.triage.without_rows.find import (
    WITHOUT_ROWS,
    EngineTriage,
    as_plain,
    named,
    triage_engines,
)
from llmtrace.triage.without_rows.stretch import find_stretch
from llmtrace.triage.without_rows.terminal_screen import engines_screen

RECORDED: Final = Path(__file__).parent / "recorded"
# Incidents in an engine, and outside of all engines.
INSIDE: Final = (
    "saturation-mild", "saturation-severe", "kv-small-more-load",
    "prefix-stamped", "acceptance-severe", "acceptance-and-prefix-mild", "longer-outputs-mild",
    "longer-outputs-severe", "long-prompts-mild", "kv-preempted-mild", "kv-preempted-severe",
)  # fmt: skip
OUTSIDE: Final = (
    "client-gate-severe", "gateway-slow-severe", "network-path-severe", "proxy-gzip",
    "rate-limit-severe", "slow-renderer-severe", "midstream-severe", "give-ups-severe",
    "quiet-calm", "gateway-quiet",
)  # fmt: skip


def triaged(name: str, buckets: Any = lambda _name, _window: (), **settings: Any) -> EngineTriage:
    """Triage the signals of a recorded case, in its own windows unless it is to search."""
    case = read_case(RECORDED / name)
    given = {"before": case.before, "after": case.after, "metric": case.metric}
    return triage_engines(case, Settings(**{**given, **settings}), buckets)


@pytest.mark.parametrize("name", INSIDE)
def test_a_cause_inside_of_an_engine_is_named(name: str):
    """Of real incidents of a real vLLM, by its signals alone."""
    truth = json.loads((RECORDED / name / "truth.json").read_text())["causes"]
    result = triaged(name)

    assert result.verdict == "moved"
    assert named(result)[0].id in truth
    assert named(result)[0].status == "confirmed"


def test_a_cause_that_is_not_listed_explains_nothing(monkeypatch: pytest.MonkeyPatch):
    """What only requests show is not judged without them, whatever its rule says."""

    def sure(evidence: Any) -> Finding:
        return replace(RULES["queue_saturation"](evidence), id="cold_start", score=99)

    before = triaged("saturation-mild")
    monkeypatch.setitem(RULES, "cold_start", sure)
    assert triaged("saturation-mild").causes == before.causes


def test_a_larger_batch_is_no_saturation_while_slots_are_free():
    """Twice as many requests share the steps, of which hardly any waits."""
    [first, *others] = named(triaged("batch-size-mild"))

    assert first.id == "batch_size"
    assert others == []


@pytest.mark.parametrize("name", ["quiet-calm", "gateway-quiet"])
def test_the_unrest_of_a_busy_machine_is_no_change(name: str):
    """Nothing was done to these, and their means differ by some nine tenths all the same."""
    assert triaged(name).verdict == "no_change"


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_cause_outside_of_engines_is_not_guessed(name: str):
    """No engine is blamed for what it does not show; those causes are listed as not known."""
    result = triaged(name, **({"metric": None} if name.startswith("slow") else {}))

    assert [one.id for one in named(result)] == []
    assert {*result.needs_rows} == {*CAUSES} - WITHOUT_ROWS


def test_an_incident_is_found_without_windows():
    """Where it began and what it is compared with, by the means between scrapes."""
    case = read_case(RECORDED / "saturation-severe")
    result = triaged("saturation-severe", before=None, after=None, metric=None)

    assert case.after is not None
    # Nothing was scraped before it, so the first interval is that after the first scrape.
    assert abs(result.after.start - case.after.start) < 5
    assert result.before.end <= result.after.start
    assert [one.id for one in named(result)] == ["queue_saturation"]


def test_means_add_up_and_are_of_all_requests():
    """Sums over counts; and percentiles lie between bounds, open above the last."""
    inf = float("inf")
    counts = [(0.3, 10.0), (1.0, 60.0), (inf, 100.0)]
    result = triaged("saturation-severe", lambda _name, _window: counts)
    means = {one.name: one for one in result.means}
    parts = [means[name].after for name in ("queue", "prefill", "decode", "rest")]

    assert sum(filter(None, parts)) == pytest.approx(means["e2e"].after)
    assert means["queue"].after == pytest.approx(6.87, rel=0.01)
    assert result.requests[1] == pytest.approx(162, abs=2)
    plain = as_plain(result)
    p50, p95 = (one["after"] for one in plain["percentiles"] if one["name"] == "ttft")
    assert (p50, p95) == ({"over": 0.3, "at_most": 1.0}, {"over": 1.0, "at_most": None})
    json.dumps(plain, allow_nan=False)


def test_nothing_counted_is_said():
    """Gauges alone, or nothing: what would have to be there is named."""
    case = read_case(RECORDED / "quiet-calm")
    gauge = {"t": 1.0, "instance": "e", "signal": "running", "value": 1.0}
    for signals in (no_signals(), signals_from([gauge])[0]):
        with pytest.raises(DataError, match="no engine counted a request"):
            triage_engines(
                type(case)(rows=case.rows, signals=signals), Settings(), lambda _n, _w: ()
            )


@pytest.mark.parametrize(("unrest", "carried"), [(0.3, 0.0), (0.2, 0.7)])
def test_the_usual_unrest_is_no_incident(unrest: float, carried: float):
    """Means that vary, also slowly, have no stretch that stands out; one of four times has."""
    rng = np.random.default_rng(1)
    found, missed = 0, 0
    for _ in range(20):
        values = np.zeros(120)
        for place, step in enumerate(rng.normal(0, unrest, len(values))):
            values[place] = step + (carried * values[place - 1] if place else 0)
        for times in (1.0, 4.0):
            means = np.exp(values) * np.where(np.arange(120) // 20 == 4, times, 1.0)
            rows = from_dicts(
                {"start": int(15e9 * place), "ttft_s": float(mean), "weight": 1.0}
                for place, mean in enumerate(means)
            )
            stretch = find_stretch(rows, ["ttft_s"])
            if times == 1.0:
                found += stretch is not None
            else:
                missed += stretch is None or abs(stretch[1].start - 80 * 15) > 100

    assert found == 0
    assert missed <= 1


STEP: Final = 15.0
PER_STEP: Final = 120.0  # requests of an engine, 8 a second


def counting(name: str, times: Iterable[float], slow: Window) -> Iterator[dict[str, Any]]:
    """Yield what an engine counts of itself: it takes a tenth of a second, and 2 s while slow."""
    since, count, total = None, 0.0, 0.0
    for t in times:
        ended = PER_STEP * (0.0 if since is None else (t - since) / STEP)
        since, count = t, count + ended
        total += ended * (2.0 if slow.start <= t < slow.end else 0.1)
        for signal in ("ttft", "queue", "e2e"):
            for part, value in (("sum", total), ("count", count)):
                yield {"t": t, "instance": name, "signal": f"{signal}_{part}", "value": value}


def of_engines(*engines: Iterable[dict[str, Any]], **settings: Any) -> EngineTriage:
    """Triage what some engines counted."""
    signals, _ = signals_from(one for engine in engines for one in engine)
    return triage_engines(Case(empty(), signals), Settings(**settings), lambda _n, _w: ())


def steps(first: int, last: int) -> list[float]:
    """Return the times of scrapes by their numbers."""
    return [STEP * number for number in range(first, last)]


def test_no_window_that_is_found_has_a_gap_in_it():
    """Nothing was scraped for 20 minutes, in which it became slow: what came is as it was."""
    gap = Window(STEP * 199, STEP * 280)
    times = [*steps(0, 200), *steps(280, 400)]
    result = of_engines(counting("a", times, Window(STEP * 240, STEP * 360)))

    assert result.verdict == "moved"
    for window in (result.before, result.after):
        assert window.end <= gap.start + STEP or window.start >= gap.end
    assert result.after.start == pytest.approx(gap.end, abs=2 * STEP)
    assert result.after.end == pytest.approx(STEP * 360, abs=2 * STEP)
    for requests, window in zip(result.requests, (result.before, result.after), strict=True):
        assert requests / window.seconds == pytest.approx(PER_STEP / STEP, rel=0.05)
    assert any("no engine was scraped" in warning for warning in result.warnings)


def test_a_quiet_time_with_a_gap_is_divided_where_it_was_recorded():
    """And a time that is asked about in the gap cannot be answered."""
    times = [*steps(0, 200), *steps(280, 400)]
    result = of_engines(counting("a", times, Window(0, 0)))

    assert result.verdict == "no_change"
    assert result.after.end <= STEP * 199 + 1
    with pytest.raises(DataError, match="no engine was scraped from"):
        of_engines(counting("a", times, Window(0, 0)), at=STEP * 240)


def test_given_windows_with_a_gap_have_the_rate_that_was_counted():
    """The counters went on while they were not read: the rate did not rise because of that."""
    times = [*steps(0, 200), *steps(280, 400)]
    before, after = Window(STEP * 100, STEP * 320), Window(STEP * 320, STEP * 400)
    result = of_engines(counting("a", times, Window(after.start, after.end)),
                        before=before, after=after)  # fmt: skip

    rates = [n / one.seconds for n, one in zip(result.requests, (before, after), strict=True)]
    assert rates == pytest.approx([PER_STEP / STEP] * 2, rel=0.05)


def test_requests_are_counted_once_after_a_rollout():
    """Engines of new names took over within a window: neither count is that of all of it."""
    calm = Window(0, 0)
    result = of_engines(
        counting("old", steps(0, 150), calm),
        counting("new", steps(150, 400), calm),
        before=Window(0, STEP * 100),
        after=Window(STEP * 100, STEP * 400),
    )

    assert result.requests == pytest.approx((100 * PER_STEP, 300 * PER_STEP), rel=0.02)


SCHEMA: Final = json.loads(
    (
        Path(__file__).parents[2] / "docs" / "on-call" / "engine-triage-result.schema.json"
    ).read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", ["saturation-severe", "long-prompts-mild", "quiet-calm"])
def test_json_is_as_described(name: str):
    """It holds to its own schema in docs/, whatever was found."""
    counts = [(0.3, 10.0), (1.0, 60.0), (float("inf"), 100.0)]
    plain = json.loads(json.dumps(as_plain(triaged(name, lambda _name, _window: counts))))

    Draft202012Validator.check_schema(SCHEMA)
    assert list(Draft202012Validator(SCHEMA).iter_errors(plain)) == []


def test_json_of_too_little_is_as_described():
    """As of two scrapes, with no buckets."""
    result = of_engines(counting("a", steps(0, 3), Window(0, 0)))

    assert result.verdict == "not_enough_data"
    plain = json.loads(json.dumps(as_plain(result)))
    assert list(Draft202012Validator(SCHEMA).iter_errors(plain)) == []
    assert SCHEMA["$defs"]["finding"]["properties"]["id"]["enum"] == [*CAUSES]


def gauge(
    name: str, signal: str, times: Iterable[float], value: float
) -> Iterator[dict[str, Any]]:
    """Yield a gauge that stays at a value."""
    for t in times:
        yield {"t": t, "instance": name, "signal": signal, "value": value}


def stuck(name: str, since: int, last: int, until: int | None = None) -> list[dict[str, Any]]:
    """Return what an engine counts that ends nothing from one scrape to another."""
    ended = [*counting(name, steps(0, since), Window(0, 0))]
    held = [{**one, "t": t} for one in ended[-6:] for t in steps(since, until or last)]
    went_on = [] if until is None else [
        {**one, "value": one["value"] + ended[-6:][place % 6]["value"]}
        for place, one in enumerate(counting(name, steps(until, last), Window(0, 0)))
    ]  # fmt: skip
    busy = (
        *gauge(name, "running", steps(0, last), 64),
        *gauge(name, "waiting", steps(0, last), 9),
    )
    return [*ended, *held, *went_on, *busy]


def test_engines_that_end_nothing_are_no_quiet_time():
    """All means stay as they were: of what ended, which nothing does any more."""
    result = of_engines(stuck("a", 300, 400), counting("b", steps(0, 400), Window(0, 0)))

    assert result.verdict == "stopped"
    [halt] = result.halts
    assert (halt.instance, halt.since, halt.until, halt.scraped) == ("a", STEP * 299, None, True)
    assert (halt.running, halt.waiting) == (64, 9)
    assert result.after.start == STEP * 299
    assert list(Draft202012Validator(SCHEMA).iter_errors(json.loads(json.dumps(as_plain(result))))
                ) == []  # fmt: skip


def test_a_halt_that_is_over_is_reported_and_no_verdict():
    """Requests end again: the means of what came then are of them all."""
    result = of_engines(stuck("a", 200, 400, until=260))

    assert result.verdict != "stopped"
    [halt] = result.halts
    assert (halt.since, halt.until) == (STEP * 199, STEP * 261)


def test_an_idle_engine_has_not_stopped():
    """Nothing ended, and nothing ran or waited either."""
    held = [one for one in stuck("a", 300, 400) if one["signal"] not in {"running", "waiting"}]
    result = of_engines([*held, *gauge("a", "running", steps(0, 400), 0)])

    assert (result.verdict, result.halts) == ("no_change", ())


def test_an_engine_that_makes_tokens_has_not_stopped():
    """Its responses are long: none ends for half an hour, and tokens come all the time."""
    tokens = [{"t": t, "instance": "a", "signal": "generation_tokens", "value": 9 * t}
              for t in steps(0, 420)]  # fmt: skip
    result = of_engines([*stuck("a", 300, 420), *tokens])

    assert (result.verdict, result.halts) == ("no_change", ())


def test_engines_that_are_not_scraped_are_reported():
    """All: it has stopped. One of two: reported beside the verdict; with a successor: neither."""
    end = Window(0.0, STEP * 400)
    calm = Window(0, 0)

    def over(*engines: Iterable[dict[str, Any]]) -> EngineTriage:
        signals, _ = signals_from(one for engine in engines for one in engine)
        return triage_engines(Case(empty(), signals, searched=end), Settings(), lambda _n, _w: ())

    both = over(counting("a", steps(0, 300), calm), counting("b", steps(0, 301), calm))
    assert both.verdict == "stopped"
    assert both.after.start == STEP * 300
    one = over(counting("a", steps(0, 300), calm), counting("b", steps(0, 400), calm))
    assert [(halt.instance, halt.scraped) for halt in one.halts] == [("a", False)]
    assert one.verdict == "no_change"
    new = over(counting("a", steps(0, 300), calm), counting("b", steps(301, 400), calm))
    assert (new.verdict, new.halts) == ("no_change", ())


def test_fewer_requests_are_not_longer_ones():
    """Means of a fifth of the requests vary more: prompts are as long as they were."""
    rng = np.random.default_rng(3)

    def fleet(rate: int) -> Iterator[dict[str, Any]]:
        totals = dict.fromkeys(
            ("ttft_sum", "ttft_count", "e2e_sum", "e2e_count", "prompt_tokens"), 0.0
        )
        for number in range(400):
            ended = rate if number < 200 else max(1, rate // 6)
            lengths = rng.lognormal(7.0, 0.8, ended)
            waits = np.full(ended, 0.1 if number < 200 else 1.5)
            for name, more in (("ttft", waits.sum()), ("e2e", waits.sum() + ended)):
                totals[f"{name}_sum"] += float(more)
                totals[f"{name}_count"] += ended
            totals["prompt_tokens"] += float(lengths.sum())
            for signal, value in totals.items():
                yield {"t": STEP * number, "instance": "a", "signal": signal, "value": value}

    result = of_engines(fleet(30))
    assert result.verdict == "moved"
    assert [one.id for one in named(result)] == []


def test_nothing_moved_in_a_part_of_the_answer_is_no_all_clear():
    """Thanos warns that a store did not answer: what it has may have moved."""
    case = read_case(RECORDED / "quiet-calm")
    doubt = Doubt("Prometheus warns: store unavailable")
    case = replace(case, warnings=(doubt,))
    settings = Settings(before=case.before, after=case.after, metric=case.metric)
    result = triage_engines(case, settings, lambda _n, _w: ())

    assert result.verdict == "not_enough_data"
    assert "store unavailable" in result.reason


def test_engines_are_told_apart_and_the_header_says_since_when():
    """One of two got slow, and still is; then it is over: the screen and JSON have both."""
    slow = Window(STEP * 240, STEP * 400)
    result = of_engines(
        counting("a", steps(0, 400), Window(0, 0)), counting("b", steps(0, 400), slow)
    )

    assert result.recovered_at is None
    assert [one.instance for one in result.engines] == ["b", "a"]
    assert result.engines[0].mean == pytest.approx((0.1, 2.0), rel=0.05)
    assert result.engines[1].mean == pytest.approx((0.1, 0.1))
    text = printed(result)
    assert "ongoing, since 1970-01-01 00:59" in text
    assert text.index("\nb ") < text.index("\na ")

    over = of_engines(*(counting(name, steps(0, 400), Window(STEP * 240, STEP * 300))
                        for name in "ab"))  # fmt: skip
    assert over.recovered_at == pytest.approx(STEP * 300, abs=2 * STEP)
    assert "over: 1970-01-01 00:59" in printed(over)


def test_without_a_cause_the_part_that_grew_most_says_where_to_look():
    """Requests got slower outside of the queue: no rule of engines knows why."""
    slow, times = Window(STEP * 240, STEP * 400), steps(0, 400)
    queue = [one for one in counting("a", times, Window(0, 0)) if "queue" in one["signal"]]
    others = [one for one in counting("a", times, slow) if "queue" not in one["signal"]]
    result = of_engines(queue, others)

    assert result.verdict == "moved"
    assert named(result) == ()
    assert "look at the API servers' CPU" in printed(result)


def printed(result: EngineTriage) -> str:
    """Return the screen as text."""
    console = Console(width=120, file=io.StringIO())
    console.print(engines_screen(result))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_label_has_one_value(capsys: pytest.CaptureFixture[str]):
    """Of two fleets, the last would be read without a word; and a name has to be one."""
    server = ["triage", "--prometheus", "http://127.0.0.1:9"]

    assert main([*server, "--where", "cluster=a", "--where", "cluster=b"]) == 2
    assert "cluster can have one value, and a is it" in " ".join(capsys.readouterr().err.split())
    assert main([*server, "--where", "my-label=a"]) == 2
    assert "write LABEL=VALUE" in capsys.readouterr().err
