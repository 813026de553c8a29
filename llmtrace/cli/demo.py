"""Declare `llmtrace demo`."""

from __future__ import annotations

import argparse
from pathlib import Path

from llmtrace.cli.arguments import Commands, add_budget_option, add_command, positive


def add_demo(commands: Commands) -> None:
    """Declare `llmtrace demo`."""
    demo = add_command(
        commands,
        "demo",
        _demo,
        "inject a fault into an engine, show where the time goes, and triage it",
        "Send an engine the requests of many users, and show where their time went. Without "
        "options the engine is a simulated one, started on loopback with a collector of its own: "
        "no GPU, key or server is needed. Halfway, a fault is injected, and triage names it.",
        examples=(
            "llmtrace demo",
            "llmtrace demo --fault kv_exhaustion --rows-out rows.jsonl",
            "llmtrace demo --endpoint http://host:8000/v1 --model NAME",
        ),
        docs="start/demo.md",
    )
    _add_fault(demo)
    _add_engine(demo)
    _add_load(demo)
    shown = demo.add_argument_group("output")
    add_budget_option(shown)
    shown.add_argument(
        "--rows-out", type=Path, metavar="FILE",
        help="file of the requests' rows to write, one JSON object per line",
    )  # fmt: skip


def _add_fault(demo: argparse.ArgumentParser) -> None:
    broken = demo.add_argument_group("fault of the simulated engine")
    broken.add_argument(
        "--fault", metavar="NAME",
        help="fault injected halfway, or none (default: gpu_throttle; none with --requests)",
    )  # fmt: skip
    broken.add_argument(
        "--severity", type=positive(float), default=3.0, metavar="S",
        help="severity of the fault, from 1, hardly noticed, to 3 (default: 3)",
    )  # fmt: skip
    broken.add_argument("--list", action="store_true", help="list the faults, and exit")
    broken.add_argument("--html", type=Path, metavar="FILE", help="web page of the triage")


def _add_engine(demo: argparse.ArgumentParser) -> None:
    engine = demo.add_argument_group("engine")
    either = engine.add_mutually_exclusive_group()
    either.add_argument(
        "--endpoint",
        metavar="URL",
        help="address of an OpenAI-compatible server, as http://host:8000/v1",
    )
    either.add_argument(
        "--vllm", action="store_true", help="use a real vLLM, started for this (`make vllm` once)"
    )
    engine.add_argument("--model", metavar="NAME", help="model to request of the endpoint")
    engine.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        help="environment variable that holds the endpoint's key; without it none is sent",
    )


def _add_load(demo: argparse.ArgumentParser) -> None:
    load = demo.add_argument_group("load")
    load.add_argument(
        "--seconds",
        type=positive(float),
        metavar="S",
        help="length of the run, with a fault the shortest (default: 24; with a fault, until "
        "there are requests enough for a triage)",
    )
    load.add_argument(
        "--requests", type=positive(int), metavar="N", help="largest number of requests"
    )
    load.add_argument(
        "--arrivals", type=Path, metavar="FILE",
        help="trace whose times and lengths are replayed, scaled to the engine: the Azure LLM "
        "inference traces (CSV), Mooncake's (JSON lines), also gzipped",
    )  # fmt: skip
    load.add_argument(
        "--concurrency",
        type=positive(int),
        metavar="N",
        help="concurrent users: with a fault always (default: 5), else in the rush, and a "
        "quarter of them before it (default: 12)",
    )


def _demo(options: argparse.Namespace) -> None:
    from llmtrace.demo import injected_faults
    from llmtrace.demo.options import DemoOptions
    from llmtrace.demo.run import run

    if options.list:
        room = max(map(len, injected_faults.FAULTS))
        for name, about in injected_faults.FAULTS.items():
            print(f"{name:<{room}}  {about}")
        return
    elsewhere = options.vllm or options.endpoint is not None or options.requests is not None
    fault = options.fault or (injected_faults.NONE if elsewhere else injected_faults.DEFAULT)
    run(
        DemoOptions(
            endpoint=options.endpoint,
            model=options.model,
            api_key_env=options.api_key_env,
            vllm=options.vllm,
            budget=options.budget,
            rows_out=options.rows_out,
            seconds=options.seconds,
            requests=options.requests,
            users=options.concurrency,
            arrivals=options.arrivals,
            fault=None if fault == injected_faults.NONE else fault,
            severity=options.severity,
            html=options.html,
        )
    )
