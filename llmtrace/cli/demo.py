"""How is `llmtrace demo` asked for?"""

from __future__ import annotations

import argparse
from pathlib import Path

from llmtrace.cli.arguments import Commands, add_command, positive


def add_demo(commands: Commands) -> None:
    """Declare `llmtrace demo`."""
    demo = add_command(
        commands,
        "demo",
        _demo,
        "break an engine half-way, show where the time goes, and triage it",
        "Ask an engine as many users would, and show where the time of their requests went. "
        "Without options the engine is a simulated one, started on loopback with a collector of "
        "its own: no GPU, key or server is needed. Half-way something is made to go wrong, and "
        "triage says what.",
    )
    broken = demo.add_argument_group("what goes wrong, in the simulated engine")
    broken.add_argument(
        "--fault", metavar="NAME",
        help="half-way (default: gpu_throttle; nothing with --requests); none = nothing",
    )  # fmt: skip
    broken.add_argument(
        "--severity", type=positive(float), default=3.0, metavar="S",
        help="from 1, hardly felt, to 3 (default: 3)",
    )  # fmt: skip
    broken.add_argument("--list", action="store_true", help="list the faults, and end")
    broken.add_argument("--html", type=Path, metavar="FILE", help="where the triage's page goes")
    whom = demo.add_argument_group("whom to ask")
    either = whom.add_mutually_exclusive_group()
    either.add_argument(
        "--endpoint", metavar="URL", help="an OpenAI-compatible server, as http://host:8000/v1"
    )
    either.add_argument(
        "--vllm", action="store_true", help="a real vLLM, started for this (`make vllm` once)"
    )
    whom.add_argument("--model", metavar="NAME", help="the model to ask the endpoint for")
    whom.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        help="environment variable that holds the endpoint's key; without it none is sent",
    )
    load = demo.add_argument_group("how much")
    load.add_argument(
        "--seconds",
        type=positive(float),
        metavar="S",
        help="ask for so long; with a fault at least (default: 24; with a fault, until there are "
        "requests enough for a triage)",
    )
    load.add_argument(
        "--requests", type=positive(int), metavar="N", help="make at most N requests"
    )
    load.add_argument(
        "--concurrency",
        type=positive(int),
        metavar="N",
        help="users asking at once: with a fault always (default: 5), else in the rush, and a "
        "quarter of them before it (default: 12)",
    )
    shown = demo.add_argument_group("what is shown")
    shown.add_argument(
        "--budget", type=Path, metavar="FILE", help="latency budget to hold the stages against"
    )
    shown.add_argument(
        "--json", type=Path, metavar="FILE", help="write each request's row there, one a line"
    )


def _demo(options: argparse.Namespace) -> None:
    from llmtrace.demo import injected_faults
    from llmtrace.demo.options import DemoOptions
    from llmtrace.demo.run import run

    if options.list:
        room = max(map(len, injected_faults.FAULTS))
        for name, about in sorted(injected_faults.FAULTS.items()):
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
            json=options.json,
            seconds=options.seconds,
            requests=options.requests,
            users=options.concurrency,
            fault=None if fault == injected_faults.NONE else fault,
            severity=options.severity,
            html=options.html,
        )
    )
