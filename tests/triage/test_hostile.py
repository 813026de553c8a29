"""Whatever the rows hold, a triage gives a verdict, and never a confident one from nonsense."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmtrace.dataset.case import Case, Window, no_signals, signals_from
from llmtrace.dataset.columns import NUMBERS, WORDS, from_dicts
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.result import SURE, as_json
from tests.triage.days import START, Kind, day

TIMES = [int((START + i) * 1e9) for i in (0, 1, 50, 100, 150, 199)]
numbers = st.none() | st.floats(0, 10) | st.floats() | st.integers(-5, 10**20) | st.just("7")
words = st.none() | st.sampled_from(["a", "b", "success", "timeout", "error", "invoke_agent", ""])
rows = st.fixed_dictionaries(
    {"start": st.sampled_from(TIMES) | st.integers(TIMES[0], TIMES[-1])},
    optional={
        **dict.fromkeys(NUMBERS, numbers),
        **dict.fromkeys(WORDS, words),
        "request_id": words,
    },
)
windows = st.sampled_from(
    [(None, None), (Window(START, START + 100), Window(START + 100, START + 200)),
     (None, Window(START + 150, START + 200)), (Window(START, START + 1), None),
     (Window(1.0, 2.0), Window(3.0, 4.0))]
)  # fmt: skip


def check(result):
    """Check what must hold of every result."""
    plain = as_json(result)
    json.dumps(plain, allow_nan=False)
    if result.delta_s is not None:
        total = sum(round(one.seconds * 1e9) for one in result.contributions)
        assert total == round(result.delta_s * 1e9)
    if result.verdict == "not_enough_data":
        assert not {one.status for one in result.causes} & SURE
    return result


@settings(max_examples=40, deadline=None)
@given(
    st.lists(rows, max_size=20),
    st.integers(1, 12),
    windows,
    st.sampled_from(["ttft", "tpot", "e2e", "render", None]),
    st.none() | st.floats(0, 2e9),
)
def test_any_rows_get_a_verdict(some, times, both, metric, at):
    """Repeated until there are enough of them to say anything at all."""
    case = Case(from_dicts(some * times), no_signals(), before=both[0], after=both[1])

    check(triage(case, Settings(metric=metric, at=at, bootstrap=3)))


@pytest.mark.parametrize("field", ["ttft_s", "prompt_tokens", "queue_s", "e2e_s", "weight"])
@pytest.mark.parametrize("value", [None, float("nan"), -1.0, 1e300, "x", 0.0])
def test_one_field_of_nonsense_in_all_rows_breaks_nothing(field, value):
    """It is unknown, and the verdict is that of a quiet day, or none."""
    flat = [{**row, field: value} for row in day(n=(300, 150)).rows.to_dicts()]
    case = day(n=(300, 150))
    result = check(
        triage(
            Case(from_dicts(flat), no_signals(), before=case.before, after=case.after),
            Settings(bootstrap=3),
        )
    )

    assert result.verdict in ("no_change", "not_enough_data")


def test_nothing_is_found_in_rows_of_one_moment():
    """Time that does not pass has no spike."""
    flat = [
        {"start": TIMES[0], "ttft_s": 0.1, "e2e_s": 1.0, "span_id": str(i)} for i in range(400)
    ]

    assert check(triage(Case(from_dicts(flat), no_signals()))).verdict == "not_enough_data"


def test_nothing_is_found_in_rows_of_one_moment_and_one_other():
    """No stretch has enough requests in it and enough outside."""
    starts = [*[TIMES[0]] * 54, *[TIMES[0] + 43_944_317_440] * 3]
    flat = [{"start": start, "span_id": str(i)} for i, start in enumerate(starts)]

    assert check(triage(Case(from_dicts(flat), no_signals()))).verdict == "not_enough_data"


def test_windows_far_from_all_rows_hold_none():
    """And that is said."""
    case = day(n=(300, 200))
    settings_ = Settings(before=Window(1.0, 5.0), after=Window(6.0, 9.0))

    assert check(triage(case, settings_)).verdict == "not_enough_data"


def test_signals_of_nonsense_change_no_verdict():
    """They are evidence for causes, and rows alone decide what moved."""
    samples = [
        {"t": START + i, "instance": "x" * 500, "signal": s, "value": v}
        for i in range(50)
        for s, v in (("running", -1e300), ("waiting", 1e300), ("", 0.0), ("kv_usage", 99.0))
    ]
    case = day(after=Kind(prefill=2.0), n=(600, 300))
    odd = Case(case.rows, signals_from(samples)[0], before=case.before, after=case.after)

    assert check(triage(odd, Settings(bootstrap=3))).verdict == "regression"


def test_a_huge_duration_does_not_drown_the_rest():
    """A request that claims to have taken ten months is one request."""
    case = day(n=(600, 300))
    flat = list(case.rows.to_dicts())
    flat[-1]["ttft_s"] = flat[-1]["e2e_s"] = 3e7
    odd = Case(from_dicts(flat), no_signals(), before=case.before, after=case.after)

    assert check(triage(odd, Settings(bootstrap=3))).verdict == "no_change"


@pytest.mark.parametrize("n", [1, 71, 72, 73])
def test_at_the_floor(n):
    """A rise by a fifth is not seen in some 70 requests, and below 72 a p95 has no interval."""
    result = check(triage(day(n=(500, n)), Settings(bootstrap=3)))

    assert result.verdict == "not_enough_data"
    assert result.smallest_visible is None or result.smallest_visible > 0.2
    assert n >= 72 or result.after.p95_ci[1] is None


@pytest.mark.parametrize("n", [76, 90, 300])
def test_above_the_floor(n):
    """There is an interval as soon as 72 requests are left by what they have in common."""
    result = check(triage(day(n=(500, n)), Settings(bootstrap=3)))

    low, high = result.after.p95_ci
    assert low < result.after.p95 < high


def test_stages_that_claim_more_than_the_whole_are_cut():
    """The parts still come to the p95, and none is negative."""
    case = day(n=(400, 300))
    flat = [{**row, "queue_s": 100.0, "prefill_s": 50.0} for row in case.rows.to_dicts()]
    odd = Case(from_dicts(flat), no_signals(), before=case.before, after=case.after)
    result = check(triage(odd, Settings(bootstrap=0)))

    assert all(seconds >= 0 for seconds in result.anatomy.after.values())
    assert sum(result.anatomy.after.values()) == pytest.approx(result.after.p95)
    assert np.isfinite([one.seconds for one in result.contributions]).all()
