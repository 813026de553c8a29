"""The incidents of another hand: whole, the same for a seed, and broken by what they say."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from llmtrace.core.stages import PARTITION
from llmtrace.dataset.case import Case
from tests.bench.other_cases import OtherCase, Truth, make
from tests.bench.other_engine import Engine, Job, Law, Loop, Setup
from tests.bench.other_faults import FAULTS, NEEDS, QUIET, SHIFTS
from tests.bench.other_fleet import Fleet, draw_world

LAW = Law(base=0.01, sequence=0.001, prompt_token=0.0001)


def _engine(loop: Loop, **setup: float) -> Engine:
    made = Setup(**{"seats": 4, "budget": 1000, "kv_tokens": 1e6, **setup})  # type: ignore[arg-type]
    return Engine(loop, "one", LAW, made, Random(1))


def _job(**given: int) -> Job:
    return Job(**{"arrived": 0.0, "prompt": 100, "out": 11, **given})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def drawn() -> OtherCase:
    """A case of few requests."""
    return make(1)


def test_stages_of_each_row_add_up(drawn: OtherCase) -> None:
    """The stages and the rest are the whole wait."""
    rows = drawn.case.rows
    parts = [np.nan_to_num(rows.numbers[f"{name}_s"]) for name in PARTITION]

    np.testing.assert_allclose(sum(parts), rows.numbers["e2e_s"], atol=1e-6)


def test_a_seed_is_a_case(drawn: OtherCase) -> None:
    """The same seed gives the same rows, samples and truth."""
    again = make(1)

    assert (drawn.truth, len(drawn.case.signals)) == (again.truth, len(again.case.signals))
    np.testing.assert_array_equal(
        drawn.case.rows.numbers["e2e_s"], again.case.rows.numbers["e2e_s"]
    )


def test_rows_lie_in_the_time_recorded(drawn: OtherCase) -> None:
    """The windows meet at the onset, and rows are in order within them and after."""
    case, truth = drawn.case, drawn.truth
    assert case.before is not None
    assert case.after is not None

    assert (case.before.end, case.after.start, case.after.end) == (truth.onset,) * 2 + (truth.end,)
    assert case.rows.start.min() / 1e9 >= case.before.start
    assert not case.rows.warnings


def test_a_fault_that_moves_nothing_does_not_act(drawn: OtherCase) -> None:
    """What moves nothing by a fifth is left out."""
    idle = OtherCase(
        seed=0, case=drawn.case, truth=Truth(kind="fault"), style="vllm", moved={"ttft_s": 1.1}
    )

    assert not idle.acts


def test_what_nobody_can_tell_from_chance_does_not_act(drawn: OtherCase) -> None:
    """Windows without a difference show no fault, whatever it would have moved."""
    assert drawn.case.before is not None
    middle = drawn.case.before.start + drawn.case.before.seconds / 2
    rows = drawn.case.rows.within(drawn.case.before.start, middle)
    halves = drawn.case.before, drawn.case.before
    same = Case(rows=rows, signals=drawn.case.signals, before=halves[0], after=halves[1])

    assert not OtherCase(
        seed=0, case=same, truth=Truth(kind="fault"), style="vllm", moved={"ttft_s": 9.0}
    ).acts


@pytest.mark.parametrize("name", [*FAULTS, *SHIFTS, *QUIET])
def test_each_change_begins_and_ends(name: str) -> None:
    """What is turned when it begins is as it was when it has ended."""
    world = draw_world(Random(f"test {name}"), NEEDS.get(name, {}))
    fleet = Fleet(world, 1)
    change = {**FAULTS, **SHIFTS, **QUIET}[name](world, 0.5, Random(2))
    setups = [engine.setup.seats for engine in fleet.real]
    before = repr(fleet.knobs)

    change.begin(fleet)
    change.finish(fleet)

    assert (repr(fleet.knobs), change.what != "") == (before, True)
    assert [engine.setup.seats for engine in fleet.real][: len(setups)] == setups


def test_an_engine_takes_the_time_its_law_says() -> None:
    """One request alone: its prompt in one step, then a step a token."""
    loop = Loop()
    engine, job = _engine(loop), _job()

    engine.submit(job)
    loop.run(10.0)

    assert job.first == pytest.approx(0.01 + 100 * 0.0001 * (1 + 100 / 60_000))
    assert job.done == pytest.approx(job.first + 10 * 0.011, abs=1e-5)


def test_tokens_leave_one_after_the_other() -> None:
    """As many times as tokens after the first, in order, the last at the end."""
    loop = Loop()
    engine, job = _engine(loop), _job()
    engine.submit(job)
    loop.run(10.0)

    times = engine.token_times(job, (np.array(engine.knots_t), np.array(engine.knots_v)))

    assert len(times) == 10
    assert (np.diff(times) > 0).all()
    assert times[-1] == pytest.approx(job.done, abs=1e-5)


def test_who_finds_no_seat_waits() -> None:
    """With one seat the second is scheduled when the first is done."""
    loop = Loop()
    engine, first, second = _engine(loop, seats=1), _job(), _job()
    engine.submit(first)
    engine.submit(second)
    loop.run(10.0)

    assert second.scheduled == pytest.approx(first.done, abs=1e-5)


def test_a_full_cache_puts_a_request_back() -> None:
    """Two that fit at first and not with their answers: one is preempted, and both end."""
    loop = Loop()
    engine = _engine(loop, kv_tokens=230)
    jobs = [_job(out=60), _job(out=60)]
    for job in jobs:
        engine.submit(job)
    loop.run(60.0)

    assert sum(job.preemptions for job in jobs) >= 1
    assert all(job.done is not None and job.got == pytest.approx(60) for job in jobs)


def test_a_paused_engine_goes_on_where_it_was() -> None:
    """A pause delays what is being decoded by its length, and what came meanwhile starts after."""
    loop = Loop()
    engine, job, late = _engine(loop), _job(out=100), _job()
    engine.submit(job)
    loop.at(0.5, engine.pause)
    loop.at(1.0, engine.submit, late)
    loop.at(2.5, engine.resume)
    loop.run(20.0)

    assert job.done is not None
    assert job.done > 2.5
    assert late.seen == 2.5


def test_a_killed_engine_loses_what_is_on_it() -> None:
    """All its requests end, and none of them whole."""
    loop = Loop()
    engine = _engine(loop)
    ends: list[bool] = []
    job = _job(out=100)
    job.on_end = lambda _, whole: ends.append(whole)
    engine.submit(job)
    loop.at(0.5, engine.kill)
    loop.run(5.0)

    assert ends == [False]
