"""Run `llmtrace demo`."""

from __future__ import annotations

import argparse


def run_demo(options: argparse.Namespace) -> None:
    """Run `llmtrace demo` as its options say."""
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
