"""What does each panel's query cost Prometheus, on a fleet with many label sets? And the rules?

    python -m tests.bench.bench_boards --sets 500 --hours 6

Makes blocks of a fleet (boards_past.py). Then asks every query of every panel, as Grafana would
with a dashboard as it opens, and prints the slowest and all that took longer than a second. Asks
the expressions of the recording rules and alerts as well, and compares what the rules would
record with the series the panels read. The exit status is 1 if a query took longer than a second,
or a sum differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final, NamedTuple

from llmtrace.budget import DEFAULT
from llmtrace_dashboards.boards import dashboards
from llmtrace_dashboards.grafana_json import MAX_POINTS
from llmtrace_dashboards.lint.queries import chosen, expand, panels, targets
from llmtrace_dashboards.rules.recording_rules import rule_files
from tests.bench.boards_past import END, HOUR, Fleet, blocks
from tests.real.prometheus import get, missing, prometheus

LIMIT_S: Final = 1.0
ATTEMPTS: Final = 3  # of a query that seems slow: the machine may have been busy
SLOWEST: Final = 10
_SUMS: Final = ("llmtrace-totals", "llmtrace-totals-by")


class Cost(NamedTuple):
    """What one query cost, and where it is.

    Attributes:
        seconds: of evaluation, or of the processor where that is less: then it had to wait for
            the processor.
        samples: how many were read.
    """

    seconds: float
    samples: int
    where: str

    def __str__(self) -> str:
        """Write one line of the table."""
        return f"{self.seconds:7.2f} s {self.samples:>13,} samples  {self.where}"


def main() -> int:
    """Measure, print, and return the exit status."""
    options = _options()
    if reason := missing("prometheus", "promtool"):
        print(reason, file=sys.stderr)
        return 1
    fleet = Fleet(options.sets, options.engines, options.hours, options.scrape, options.single)
    with tempfile.TemporaryDirectory() as folder:
        print(f"making blocks: {fleet} ...", flush=True)
        data, series = blocks(Path(folder), fleet)
        print(f"{series:,} series", flush=True)
        every = {"global": {"scrape_interval": f"{options.scrape}s"}}
        flags = ["--query.timeout=5m", "--query.max-samples=500000000"]
        with prometheus(every, data=data, flags=flags) as url:
            slow = _panels(url, fleet, options)
            return 1 if _rules(url) + slow else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=500, help="label sets of requests")
    parser.add_argument("--engines", type=int, default=48, help="instances of engines")
    parser.add_argument("--hours", type=int, default=6)
    parser.add_argument("--scrape", type=int, default=60, help="seconds between two scrapes")
    parser.add_argument(
        "--single", type=int, default=900, metavar="SECONDS",
        help="how far back series of single label sets go; a choice at the top needs all of it",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", help="print every query, not the slow ones")
    parser.add_argument(
        "--choose", action="append", default=[], metavar="NAME=VALUE",
        help="a variable at the top, as in service=s3; recorded= is as if there were no rules",
    )  # fmt: skip
    return parser.parse_args()


def _panels(url: str, fleet: Fleet, options: argparse.Namespace) -> int:
    """Ask for what the panels ask for; return how many queries were slow."""
    shown_s = fleet.hours * HOUR
    values = {
        "__rate_interval": f"{4 * fleet.scrape_s}s", "__range": f"{shown_s}s",
        "__range_s": str(shown_s), "budget": DEFAULT.name, "before": "1h", "recorded": "*",
        **dict(one.split("=", 1) for one in options.choose),
    }  # fmt: skip
    costs = []
    for name, dashboard in dashboards().items():
        at_top = {**chosen(dashboard), **values}
        for panel in panels(dashboard):
            for target in targets(panel):
                where = f"{name.removesuffix('.json')}: {panel['title']}, {target['refId']}"
                graph_s = None if target.get("instant") else shown_s
                expression = expand(target["expr"], at_top)
                cost = _ask(url, expression, graph_s, where)
                for _ in range(ATTEMPTS - 1):
                    if cost.seconds > LIMIT_S:
                        cost = min(cost, _ask(url, expression, graph_s, where))
                costs.append(cost)
                if options.all:
                    print(cost, flush=True)
    costs.sort(reverse=True)
    slow = sum(cost.seconds > LIMIT_S for cost in costs)
    print("\n".join(map(str, costs[: max(SLOWEST, slow)])))
    print(f"{len(costs)} queries of panels, {slow} of them longer than {LIMIT_S:g} s", flush=True)
    return slow


def _rules(url: str) -> int:
    """Ask for what the rules ask for; return how many sums are not what was recorded."""
    wrong = 0
    for file in rule_files([DEFAULT]).values():
        for group in file["groups"]:
            costs = [_ask(url, rule["expr"], None, "") for rule in group["rules"]]
            seconds, samples = sum(c.seconds for c in costs), sum(c.samples for c in costs)
            where = f"{group['name']}, {len(costs)} rules every {group['interval']}"
            print(Cost(seconds, samples, where), flush=True)
            if group["name"] in _SUMS:
                sums = (rule for rule in group["rules"] if rule["expr"].startswith("sum"))
                wrong += sum(not _is_as_recorded(url, rule) for rule in sums)
    return wrong


def _is_as_recorded(url: str, rule: dict[str, Any]) -> bool:
    found, expected = (_added_up(url, rule[key]) for key in ("record", "expr"))
    if abs(found - expected) <= 0.01 * abs(expected):
        return True
    print(f"{rule['record']} is {found:g}, and not {expected:g}")
    return False


def _added_up(url: str, expression: str) -> float:
    found = get(url, "/api/v1/query", query=f"sum({expression})", time=str(END - 60))
    return sum(float(one["value"][1]) for one in found["data"]["result"])


def _ask(url: str, expression: str, graph_s: int | None, where: str) -> Cost:
    """Return what a query cost: of a graph over so many seconds; `None` = of one moment."""
    given: dict[str, Any] = {"query": expression, "stats": "all", "timeout": "300s"}
    if graph_s is None:
        given["time"] = END - 60
    else:
        step = _step_s(graph_s)
        given |= {"start": END - graph_s, "end": END - 60, "step": step}
    path = "query" if graph_s is None else "query_range"
    body = urllib.parse.urlencode(given).encode()
    before_s, began = _processor_s(url), time.monotonic()
    with urllib.request.urlopen(f"{url}/api/v1/{path}", body, timeout=330) as answer:
        stats = json.load(answer)["data"]["stats"]
    waited_s = time.monotonic() - began
    took_s = float(stats["timings"].get("execTotalTime", waited_s))
    took_s = min(took_s, _processor_s(url) - before_s)
    return Cost(took_s, int(stats["samples"]["totalQueryableSamples"]), where)


def _processor_s(url: str) -> float:
    """Return the processor time that Prometheus has used, in seconds."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("process_cpu_seconds_total "):
                return float(line.split()[1])
    raise AssertionError("Prometheus does not expose its processor time")


def _step_s(graph_s: int) -> int:
    """Return the seconds between two points of a graph: one that Grafana would take."""
    return next(step for step in (15, 20, 30, 60, 120, 300) if step >= graph_s / MAX_POINTS)


if __name__ == "__main__":
    sys.exit(main())
