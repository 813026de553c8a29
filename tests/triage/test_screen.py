"""What a triage says to people: on a terminal and on a page, the same words."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from io import StringIO
from typing import get_args

import numpy as np
import pytest
from rich.console import Console

from llmtrace.core.errors import ConfigError, SourceError
from llmtrace.dataset.case import Case, Event, Facts, Window, signals_from
from llmtrace.dataset.columns import Doubt, concatenate
from llmtrace.triage.causes import RULES
from llmtrace.triage.oncall.alert import Alert
from llmtrace.triage.oncall.notify import summary
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.report.charts import _ticks
from llmtrace.triage.report.html import page, write_page
from llmtrace.triage.report.links import Links
from llmtrace.triage.report.naming import headline, signed, unit, verdict_words
from llmtrace.triage.report.runbooks import summary_of
from llmtrace.triage.report.sentences import endings, facts, when
from llmtrace.triage.report.terminal import screen
from llmtrace.triage.report.timeline import timeline
from llmtrace.triage.result import Cohort, Finding, Outcomes, Point, Result, Verdict
from tests.triage.days import START, Kind, day, requests

HOSTILE = '<script>alert("x")</script>[bold]&amp;'
SETTINGS = Settings(bootstrap=40)


@pytest.fixture(scope="module")
def slow() -> Case:
    """Return a day on which requests queue for longer."""
    return day(after=Kind(queued_share=0.5))


@pytest.fixture(scope="module")
def result(slow: Case) -> Result:
    """Triage it."""
    return triage(slow, SETTINGS)


def shown(result: Result, *, explain: bool = False, width: int = 110) -> str:
    """Print a result as a terminal of this width shows it."""
    out = StringIO()
    Console(file=out, width=width).print(screen(result, explain=explain))
    return out.getvalue()


def test_what_puts_all_figures_in_doubt_stands_before_the_verdict(slow):
    """On a terminal, a page and in a chat, and not a second time below."""
    doubt = "e2e_s is 3,100 s at the median: are these milliseconds?"
    result = triage(replace(slow, warnings=("said below", Doubt(doubt))), Settings(bootstrap=0))

    assert result.quality.doubts == (doubt,)
    assert shown(result).lstrip().startswith(f"! {doubt}")
    assert shown(result).count(doubt) == page(result, slow).count(doubt) == 1
    assert summary(Alert("1", "slow", START), result, None).splitlines()[1] == doubt


def test_the_table_adds_up_before_ones_eyes(result):
    """What stands in the table, added by hand, is the change, but for its rounding."""
    text = shown(result)
    lines = text.split("where the change is")[1].split("workload  ")[0].splitlines()
    parts = []
    for line in lines[1:]:
        if line.startswith("change of the p95"):
            break
        match = re.search(r"\s([+-]?[\d,.]+|0)\s", line[12:])
        if match is not None:
            parts.append(float(match[1].replace(",", "")))

    assert len(parts) > 3
    assert sum(parts) == pytest.approx(1000 * result.delta_s, abs=0.5 * len(parts))
    assert signed(result.delta_s) in lines[len(parts) + 1]


def test_what_rounds_to_nothing_has_no_sign(result):
    """A few microseconds more or less are next to nothing, in the table as on the page."""
    first, *others = result.contributions
    tiny = replace(first, seconds=-0.00002, ci=(-0.00004, 0.00003))
    changed = replace(result, contributions=(tiny, *others))

    assert re.search(r"^workload mix +≈0 +≈0 … ≈0", shown(changed), re.MULTILINE)
    assert "≈0 ms  (≈0 … ≈0)" in page(changed, day())


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_it_fits_the_terminal(result, width):
    """No line is longer than the terminal is wide, but ids, which must not be broken."""
    long = [line for line in shown(result, width=width).splitlines() if len(line) > width]

    assert long == []


def test_it_names_what_an_engineer_asks_for(result):
    """Verdict, stage, workload, who, and how good the data are."""
    text = shown(result)

    assert "a regression" in text
    assert re.search(r"queue +\+", text)
    assert re.search(r"affected +(none stands out of|one|not reported)", text)
    assert "requests/s" in text
    assert f"UTC: {result.after.n:,} requests" in text
    assert result.exemplars["slow"][0] in text


def test_explaining_tells_more(result):
    """`--explain` has every line of the plain screen's causes, the anatomy and all metrics."""
    plain, more = shown(result), shown(result, explain=True)

    assert "a request at the p95 is made of" not in plain
    assert "a request at the p95 is made of" in more
    assert "every metric looked at" in more
    assert len(more) > len(plain)


@pytest.mark.parametrize("lines", [1, 4, 5, 9])
def test_the_points_that_are_shown_add_up_to_the_score(result, lines):
    """What is left to `--explain` is one line with its points."""
    first = result.causes[0]
    points = tuple(Point(f"line {n}", n) for n in range(1, lines + 1))
    first = replace(
        first, status="confirmed", evidence=points, against=(), or_else=(),
        score=sum(point.points for point in points),
    )  # fmt: skip
    one = replace(result, causes=(first,))
    for explain in (False, True):
        text = shown(one, explain=explain).partition("causes ─")[2]
        counted = [int(n) for n in re.findall(r"^ +([+-]\d+) (?:line|in)", text, re.MULTILINE)]
        assert sum(counted) == first.score
        assert len(counted) == (lines if explain or lines <= 4 else 5)


def test_one_cohort_is_named():
    """If one replica is slow, it is named, with the p95 of all others."""
    result = triage(day(after=Kind(slow_replica=6.0)), SETTINGS)

    assert "replica=vllm-0" in shown(result)
    assert "vllm-0" in page(result, day())


def test_what_a_case_says_of_itself_comes_first(slow):
    """A note, that it is simulated for one, is the first of what limits the verdict."""
    odd = replace(slow, note="simulated: no waits", warnings=("one row was odd",))
    result = triage(odd, SETTINGS)
    text = shown(result).split("data: ")[1]

    assert result.quality.warnings[0] == "simulated: no waits"
    assert text.index("! simulated: no waits") < text.index("! one row was odd")
    assert "<p>! simulated: no waits</p>" in page(result, odd)


def test_too_few_requests_is_said_first():
    """Where nothing is known, the screen says so and shows no table of guesses."""
    few = day(n=(30, 20))
    text = shown(triage(few, SETTINGS))

    assert "cannot tell" in text.splitlines()[0]
    assert "where the change is" not in text
    assert "cannot tell" in page(triage(few, SETTINGS), few)


def hostile(result: Result) -> Result:
    """Put text of an attacker's wherever text comes from outside."""
    finding = Finding(
        id="queue_saturation",
        status="likely",
        score=9,
        evidence=(Point(HOSTILE, 6),),
        against=(Point(HOSTILE, -3),),
        missing=(HOSTILE,),
        action=HOSTILE,
        runbook=HOSTILE,
    )
    return replace(
        result,
        reason=HOSTILE,
        causes=(finding, replace(finding, status="ruled_out"), replace(finding, status="unknown")),
        exemplars={"slow": (HOSTILE,)},
        settle=(HOSTILE,),
        quality=replace(result.quality, warnings=(HOSTILE,), matched_on=(HOSTILE,)),
        cohorts=tuple(replace(one, attributes={"tenant": HOSTILE}) for one in result.cohorts),
    )


def test_text_from_outside_is_text(slow):
    """Neither the page nor the terminal takes names and evidence for markup."""
    result = hostile(triage(day(after=Kind(slow_replica=6.0)), SETTINGS))
    case = replace(slow, facts=Facts(events=(Event(START + 100, HOSTILE, HOSTILE),)))
    written = page(result, case)

    assert "<script" not in written
    assert HOSTILE in unescape(written)
    assert HOSTILE in re.sub(r"\s+", " ", shown(result, explain=True, width=300))


def test_the_page_asks_nobody(result, slow):
    """No script, no style sheet, font or picture of another site."""
    written = page(result, slow)

    assert not re.search(
        r"https?://(?!www\.w3\.org)|<script|<link(?! rel=\"icon\")|url\(", written
    )


def test_the_page_draws_the_change(result, slow):
    """Every part that has a share in it is a bar with its figure."""
    written = page(result, slow)

    for one in result.contributions:
        if one.seconds:
            assert f"{signed(one.seconds)} ms" in written
    assert "Over time" in written
    assert written.count("<svg") == 4  # each for a wide page, and for a narrow one


def test_requests_that_report_no_metric_are_counted(result):
    """Failures have no latency, and are requests."""
    ended = {"before": {"success": result.before.n}, "after": {"success": 9, "error": 90}}
    outcomes = replace(GAVE_UP, **ended)
    lines = when(replace(result, outcomes=outcomes, after=replace(result.after, n=9, requests=9)))

    assert "99 requests, 9 of them with time to first token, p95" in lines[-2]
    assert f": {result.before.n:,} requests, p95" in lines[-1]


def test_rows_that_are_a_sample_are_not_all_requests(result):
    """What they stand for is counted, and that they are a sample is said."""
    ended = {"before": {"success": result.before.n}, "after": {"success": 90, "error": 9}}
    after = replace(result.after, n=45, requests=90)
    lines = when(replace(result, outcomes=replace(GAVE_UP, **ended), after=after))

    counted = "99 requests, 90 of them with time to first token (a sample: 45 rows), p95"
    assert counted in lines[-2]
    assert "sample" not in lines[-1]


def test_outcomes_that_are_not_known_are_no_successes():
    """Their share is said, unless it is that of all requests."""
    outcomes = replace(GAVE_UP, before={"success": 9}, after={"success": 8, "unknown": 2})

    assert "not known 0.0 % → 20.0 %" in endings(outcomes)
    assert "not known" not in endings(replace(outcomes, after={"success": 8}))


@pytest.mark.parametrize("verdict", get_args(Verdict))
def test_every_verdict_has_words(result, slow, verdict):
    """None is missing on the screen or the page."""
    changed = replace(result, verdict=verdict)

    assert shown(changed)
    assert page(changed, slow)


def test_a_page_that_cannot_be_written_is_said(result, slow, tmp_path):
    """The error says which file, and why."""
    with pytest.raises(SourceError, match=r"gone.*no such file"):
        write_page(tmp_path / "gone" / "page.html", result, slow)


# --- what the person on call gets ----------------------------------------------------------------


@pytest.fixture(scope="module")
def past() -> tuple[Case, Result]:
    """Return a day with an incident that is over, and a triage of it."""
    slow = day(after=Kind(queued_share=0.5), windows=False)
    quiet = requests(2000, Kind(), 77, slow.rows.start[-1] / 1e9 + 1)
    case = replace(slow, rows=concatenate([slow.rows, quiet]))
    return case, triage(case, SETTINGS)


def test_what_is_over_is_not_called_now(past):
    """Neither on the screen nor on the page; it is said since when it is over, with its zone."""
    case, result = past
    text, written = shown(result, explain=True), page(result, case)

    assert result.state == "over"
    assert "it is over" in text.splitlines()[0]
    assert re.search(r"over since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", text)
    assert re.search(r"p95 of the last requests [\d,.]+ ms; it peaked at [\d,]+ ms, \d{4}-", text)
    assert not re.search(r"\bnow\b", text)
    assert ">now<" not in written
    assert "p95 now" not in written


def test_impact_and_changes_are_on_the_screen(past):
    """How many requests and tenants, over which limit, and what was deployed."""
    case, result = past
    began = result.onset.best
    event = Event(began - 60, "deploy", "gateway 2.31")
    result = triage(replace(case, facts=Facts({}, (event,))), SETTINGS)
    text = " ".join(shown(result, width=200).split())
    hit = f"{result.impact.requests:,} of {result.impact.of:,} requests exceeded a time to first"

    assert hit in text
    assert "6 tenants" in text
    assert "error budget" not in text
    assert re.search(r"deploy: gateway 2\.31, \d+ s before it began", text)


def test_links_open(past):
    """Traces and runbooks by the addresses that were given; whole, on a narrow terminal too."""
    case, result = past
    links = Links("https://t.example/{trace_id}?x=1", "https://d.example/{cause}.html")
    finding = Finding(id="gpu_throttle", status="likely", score=20, action="Drain the node.")
    result = replace(result, causes=(finding,))
    out = StringIO()
    Console(file=out, width=40).print(screen(result, links=links), crop=False)
    trace = result.exemplars["slow"][0]
    written = page(result, case, links)

    assert f"https://t.example/{trace}?x=1" in out.getvalue()
    assert f'href="https://t.example/{trace}?x=1"' in written
    assert 'href="https://d.example/gpu_throttle.html"' in written
    assert Links(runbooks="https://d.example/r/").runbook("x") == "https://d.example/r/x.md"


@pytest.mark.parametrize(
    "given", [{"traces": "https://t.example"}, {"traces": "x{trace_id}"}, {"runbooks": "docs"}]
)
def test_a_link_that_cannot_be_is_said(given):
    """An address, and a place for the trace's id."""
    with pytest.raises(ConfigError, match=r"--trace-url|--runbooks"):
        Links(**given)


def test_the_incident_is_in_view_on_a_narrow_page(past):
    """Its picture is drawn for the width, and shows the incident and all it is compared with."""
    case, result = past
    written = page(result, case)
    narrow = re.search(r'<svg class="narrow".*?</svg>', written, re.DOTALL)[0]
    shade = re.search(r'width="([\d.]+)" height="[\d.]+" fill="[^"]+" opacity="0.10"/>'
                      r'<text [^>]*>then', narrow)  # fmt: skip

    assert "min-width: 40rem" not in written
    assert float(shade[1]) > 340 / 10


def test_the_picture_is_of_the_headline_and_of_all_it_compares():
    """Failures, from the window before on, to the end of the signals; of no requests a gap."""
    rows = day(after=Kind(failed=0.5), windows=False, n=(2000, 600)).rows
    end = float(rows.start[-1]) / 1e9 + 500
    sample = {"t": end, "instance": "vllm-0", "signal": "running", "value": 0.0}
    signals, _ = signals_from([sample])
    case = Case(rows, signals)
    result = triage(case, SETTINGS)
    seen = timeline(case, result)

    assert seen.title.startswith("failed")
    since = max(result.before.window.start, rows.start[0] / 1e9)
    assert seen.span == pytest.approx((since, end), rel=0, abs=0.01)
    assert np.isnan(seen.lines["failed"][-1])
    ticks = np.array([t for _, t in _ticks(*seen.span, 5)])
    assert len({*np.diff(ticks)}) == 1
    assert not (ticks % 60).any()


def test_the_peak_is_the_highest_that_is_drawn(slow, result):
    """And is not below the p95 of all requests."""
    drawn = timeline(slow, result).lines["p95"]

    assert result.impact.worst_s == pytest.approx(np.nanmax(drawn))
    assert result.impact.worst_s >= result.after.p95


def test_where_no_interval_is_known_none_is_promised(result):
    """Neither as a column, nor by bars as faint as noise."""
    parts = [replace(one, ci=(None, None), significant=False) for one in result.contributions]
    few = replace(result, contributions=tuple(parts))

    assert "95% CI" in shown(result)
    assert "95% CI " not in shown(few).split("where the change is")[1]
    assert 'opacity="0.35"' not in page(few, day())


def test_a_narrow_page_says_what_a_wide_one_does(result):
    """The intervals are in both pictures of the change, since the title is of both."""
    drawn = page(result, day()).split("Where the change is")[1].split("</section>")[0]
    wide, narrow = drawn.split('<svg class="narrow"')
    intervals = re.findall(r"\([^()]+ … [^()]+\)", wide)

    assert "brackets: 95% CI" in drawn
    assert intervals
    assert re.findall(r"\([^()]+ … [^()]+\)", narrow) == intervals


def test_the_colours_of_the_lines_are_not_mixed_with_their_time(result, slow):
    """A heading has the legend alone; the time that is drawn stands below it."""
    heading = page(result, slow).split("<h2>Over time")[1].split("</h2>")[0]

    assert heading.endswith("</i>p50</small>")


def test_the_page_says_what_points_are(result, slow):
    """Where there are any."""
    finding = Finding(id="gpu_throttle", status="likely", score=20)

    assert "Points: how much" in page(replace(result, causes=(finding,)), slow)
    assert "Points: how much" not in page(replace(result, causes=()), slow)


def test_what_to_do_stands_under_the_cause_on_the_page(result, slow):
    """Not below all pictures; the runbook is text, without links that open nothing."""
    finding = Finding(id="gpu_throttle", status="likely", score=20, action="Drain the node.")
    written = page(replace(result, causes=(finding,)), slow)
    text = written.split('<div class="runbook">')[1].split("</div>")[0]

    assert written.index("→ Drain the node.") < written.index("<svg")
    assert "<h3>What to do now</h3>" in text
    assert "<pre><code" in text
    assert not re.search(r"\]\(|`|^#|<a ", text, re.MULTILINE)


def test_a_runbook_is_no_source_text_on_the_page(result, slow):
    """Of each cause: its table is a table, and what is to be typed is marked as code."""
    causes = tuple(Finding(id=name, status="likely", score=20) for name in RULES)
    written = page(replace(result, causes=causes), slow)
    text = written.split("<h2>Runbooks</h2>")[1]

    assert "<td>sglang</td>" in text
    assert "<code>--max-num-seqs</code>" in text
    assert not re.search(r"`|^\||\*\w+\*|\|---", text, re.MULTILINE)


def test_time_without_requests_is_said_of_an_onset(past):
    """It began after it, or in it; and what changed before the data start is not known."""
    _, result = past
    onset = replace(result.onset, earliest=result.onset.best - 600, gap_s=540.0)
    data = Window(result.onset.best - 650, result.onset.best + 900)
    text = " ".join(shown(replace(result, onset=onset, data=data), width=250).split())

    assert re.search(r"95 % interval \d{4}-.*, of which 9 min have no requests", text)
    assert re.search(r"none reported or seen from the start of the data, \d{4}-.* UTC,", text)


# --- what users lose comes first -----------------------------------------------------------------


GAVE_UP = Outcomes(
    before={"success": 3233}, after={"success": 706, "cancelled": 178}, failed_before=0.0,
    failed_after=0.0, p_value=None, significant=False, cancelled_before=0.0,
    cancelled_after=0.201, gave_up=True, failures={},
)  # fmt: skip


def test_cancelled_requests_come_before_a_latency_that_fell(result):
    """What is left after users gave up looks faster: that is no headline, nor is its split."""
    faster = replace(result, outcomes=GAVE_UP, delta_s=-0.1)
    slower = replace(result, outcomes=GAVE_UP)

    assert headline(faster) == "cancelled requests 0.0 % → 20.1 %"
    assert "where the change is" not in shown(faster)
    assert re.match(r"cancelled requests 0.0 % → 20.1 % · time to first token p95 ",
                    headline(slower))  # fmt: skip
    assert "where the change is" in shown(slower)


def test_a_latency_that_is_not_beyond_chance_is_of_all_requests(result):
    """A proof of a few requests stands beside the p95 of all: the headline says which is which."""
    proved = replace(result, significant=False)

    assert re.search(r"p95 of all requests .* not beyond chance$", headline(proved))
    assert "not beyond chance" not in headline(result)


def test_requests_that_do_not_come_are_the_headline(result):
    """So many a second, not by how much faster the others are; no impact by a latency."""
    half = replace(result.load["before"], requests_per_s=6.0)
    finding = Finding(id="traffic_lost", status="confirmed", score=19, group={"region": "eu"})
    lost = replace(
        result, verdict="traffic", significant=False, causes=(finding,),
        impact=replace(result.impact, lost=3700),
        load={"before": replace(half, requests_per_s=15.2), "after": half},
    )  # fmt: skip
    text = shown(lost)

    assert text.startswith("fewer requests than before, ongoing: requests a second 15.2 → 6")
    assert "confirmed cause: traffic_lost on region=eu" in text
    assert re.search(r"^affected +region=eu, by the evidence for traffic_lost", text, re.MULTILINE)
    assert re.search(r"^impact +about 3,700 requests fewer", text, re.MULTILINE)
    assert "had time" not in text


def test_an_improvement_is_not_called_ongoing(result):
    """Good news lasts; an incident is ongoing."""
    better = replace(result, verdict="improvement", state="ongoing")

    assert verdict_words(better)[0] == "faster than before"
    assert "ongoing" not in shown(better)
    assert re.search(r"faster until \d{4}-", shown(better))


@pytest.mark.parametrize(
    ("group", "cohort", "said"),
    [
        ({"replica": "vllm-0"}, {"replica": "vllm-0"}, False),
        ({"replica": "vllm-0"}, {"tenant": "a"}, True),
        ({}, {"tenant": "a"}, False),
    ],
)
def test_the_group_of_a_cause_is_among_the_affected(result, group, cohort, said):
    """Once, if it is a cohort as well."""
    finding = Finding(id="gpu_throttle", status="confirmed", group=group)
    one = Cohort(attributes=cohort, excess_share=0.9, traffic_share=0.2, p95_without=0.2, n=100,
                 slow=50, q=0.001)  # fmt: skip
    changed = replace(result, causes=(finding,), cohorts=(one,))

    assert ("by the evidence for gpu_throttle" in dict(facts(changed))["affected"]) == said
    alone = dict(facts(replace(changed, cohorts=())))["affected"]
    assert ("none stands out" in alone) == (not group)


def test_what_contains_the_affected_is_not_named_again(result):
    """Most of a region is slow because one replica of it is; another cohort is named."""
    pair = {"model": "big", "region": "eu"}
    cohorts = tuple(
        Cohort(attributes=one, excess_share=0.9, traffic_share=0.2, p95_without=0.2, n=100,
               slow=50, q=0.001)
        for one in (pair, {"region": "eu"}, {"model": "big"}, {"tenant": "a"})
    )  # fmt: skip
    named = dict(facts(replace(result, cohorts=cohorts)))["affected"]

    assert [text.partition(":")[0] for text in named.split("; ")[::2]] == [
        "model=big, region=eu", "tenant=a"
    ]  # fmt: skip


def test_long_times_are_in_seconds_everywhere(result):
    """One unit in a report, or its figures cannot be compared at a glance."""
    factor = 100.0
    longer = replace(
        result,
        before=replace(result.before, p95=factor * result.before.p95),
        after=replace(result.after, p95=factor * result.after.p95),
        delta_s=factor * result.delta_s,
        contributions=tuple(
            replace(one, seconds=factor * one.seconds, ci=(None, None))
            for one in result.contributions
        ),
    )

    assert unit(result) == "ms"
    assert unit(longer) == "s"
    assert re.search(r"p95 [\d.]+ → [\d.]+ s \(\+[\d.]+ s\)", shown(longer).splitlines()[0])
    assert re.search(r"^queue +\+\d+\.\d\d ", shown(longer), re.MULTILINE)


def test_what_is_ruled_out_is_listed_only_if_explained(result):
    """A count on the plain screen; each with its reason, by name, where details are wanted."""
    out = [one.id for one in result.causes if one.status == "ruled_out"]
    plain, more = shown(result), shown(result, explain=True)

    assert f"{len(out)} ruled out" in plain
    assert [cause for cause in out if re.search(rf"^   {cause}: ", plain, re.MULTILINE)] == []
    listed = re.findall(r"^   (\w+): ", more.split("ruled out:")[1].split("cannot tell:")[0],
                        re.MULTILINE)  # fmt: skip
    assert listed == sorted(out)


def test_a_cause_is_explained_in_a_sentence(result):
    """Under its name stands what it is, for people who never read the manual."""
    finding = Finding(id="head_of_line", status="likely", score=9)
    text = shown(replace(result, causes=(finding,)))

    assert f"\n   {summary_of('head_of_line')}"[:60] in text
