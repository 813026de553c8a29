"""Declare the command that measures an endpoint under load."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llmtrace.cli.arguments import Commands, add_budget_option, add_command, positive
from llmtrace.errors import ConfigError, missing_extra

if TYPE_CHECKING:
    from llmtrace.load_test.measure import Plan
    from llmtrace.load_test.requests import Request

_COUNT: Final = 200
_OTHER_SEED: Final = 1_000_003


def add_bench(commands: Commands) -> None:
    """Declare `llmtrace bench`."""
    bench = add_command(
        commands,
        "bench",
        _bench,
        "measure an endpoint under load, stage by stage",
        "Send an OpenAI-compatible endpoint a workload, and write what its requests waited for as "
        "a folder that `llmtrace compare` reads. Without an endpoint a simulated engine is used.",
        examples=(
            "llmtrace bench --endpoint http://127.0.0.1:8000/v1 --model llama --rate 4 --out a",
            "llmtrace bench --endpoint http://127.0.0.1:8000/v1 --model llama --concurrency 8",
            "llmtrace bench --trace mooncake.jsonl --requests 500 --out replayed",
        ),
        docs="operate/bench.md",
    )
    _add_endpoint(bench)
    _add_workload(bench)
    _add_load(bench)
    bench.add_argument("--out", type=Path, metavar="DIR", help="folder to write")
    add_budget_option(bench)


def _add_endpoint(bench: argparse.ArgumentParser) -> None:
    endpoint = bench.add_argument_group("endpoint")
    endpoint.add_argument("--endpoint", metavar="URL", help="base URL (default: simulated engine)")
    endpoint.add_argument("--model", metavar="NAME", help="model to request, needed by --endpoint")
    endpoint.add_argument(
        "--api-key-env", metavar="NAME", help="environment variable that holds the API key"
    )


def _add_workload(bench: argparse.ArgumentParser) -> None:
    work = bench.add_argument_group("workload")
    source = work.add_mutually_exclusive_group()
    source.add_argument(
        "--dataset", type=Path, metavar="FILE", help="JSON lines of messages, or of a prompt"
    )
    source.add_argument(
        "--trace", type=Path, metavar="FILE", help="arrivals and lengths, Azure or Mooncake format"
    )
    work.add_argument(
        "--prompt-tokens", default="256", metavar="N",
        help="tokens of a prompt, about: 256, 100-400 or lognormal:256,0.8 (default: 256)",
    )  # fmt: skip
    work.add_argument(
        "--output-tokens", default="64", metavar="N",
        help="most tokens of a response, in the same forms (default: 64)",
    )  # fmt: skip
    work.add_argument(
        "--shared-prefix", type=int, default=0, metavar="N",
        help="tokens at the start of each prompt that all share (default: 0)",
    )  # fmt: skip
    work.add_argument(
        "--requests", type=positive(int), metavar="N",
        help=f"requests to send (default: all of the file, else {_COUNT})",
    )  # fmt: skip
    work.add_argument("--seed", type=int, default=0, metavar="N", help="seed of what is drawn")


def _add_load(bench: argparse.ArgumentParser) -> None:
    load = bench.add_argument_group("load")
    loop = load.add_mutually_exclusive_group()
    loop.add_argument(
        "--rate", type=positive(float), metavar="N", help="open loop: requests a second, at random"
    )
    loop.add_argument(
        "--concurrency", type=positive(int), metavar="N",
        help="closed loop: clients that each wait for their response (default: 4)",
    )  # fmt: skip
    load.add_argument(
        "--duration", type=positive(float), metavar="S", help="seconds after which none starts"
    )
    load.add_argument(
        "--warm-up", type=int, default=3, metavar="N",
        help="requests sent first that do not count (default: 3)",
    )  # fmt: skip
    load.add_argument("--no-stream", action="store_true", help="request whole responses")
    load.add_argument(
        "--ignore-eos", action="store_true",
        help="request all output tokens, an option of vLLM and SGLang",
    )  # fmt: skip


def _bench(options: argparse.Namespace) -> int:
    try:
        from llmtrace.demo import target as targets
        from llmtrace.display.summary_tables import console_for
        from llmtrace.load_test.measure import measure
        from llmtrace.load_test.measured_tables import print_summary
        from llmtrace.load_test.result_folder import write_folder
    except ImportError as error:
        raise missing_extra("llmtrace bench", "demo", error.name or "") from error
    from llmtrace.budget import DEFAULT, read_budget

    budget = DEFAULT if options.budget is None else read_budget(options.budget)
    if options.endpoint is None:
        opened = targets.simulated()
    elif options.model is None:
        raise ConfigError("--endpoint needs --model: the name of the model to request")
    else:
        opened = targets.named(options.endpoint, options.model, options.api_key_env)
    requests = _requests(options)
    out = console_for(sys.stdout)
    with opened as target:
        plan = _plan(options, target, requests)
        print(_announced(plan), file=sys.stderr)
        measured = measure(plan, budget, _progress(len(requests)))
    print(file=sys.stderr)
    if options.out is not None:
        write_folder(options.out, plan, measured)
    print_summary(out, measured, budget, simulated=target.simulated)
    if options.out is not None:
        out.print(
            f"Written to {options.out}: llmtrace compare {options.out} OTHER", soft_wrap=True
        )
    if measured.interrupted:
        raise KeyboardInterrupt
    return 0 if any(row.outcome == "success" for row in measured.rows) else 1


def _requests(options: argparse.Namespace) -> list[Request]:
    from llmtrace.load_test.dataset_requests import from_dataset
    from llmtrace.load_test.lengths import read_lengths
    from llmtrace.load_test.requests import at_rate, drawn, from_trace

    output = read_lengths(options.output_tokens)
    if options.trace is not None:
        requests = from_trace(options.trace, options.requests, options.seed)
    elif options.dataset is not None:
        requests = from_dataset(options.dataset, options.requests, output, seed=options.seed)
    else:
        prompt = read_lengths(options.prompt_tokens)
        requests = drawn(
            options.requests or _COUNT, prompt, output,
            shared_prefix=max(0, options.shared_prefix), seed=options.seed,
        )  # fmt: skip
    if options.rate is not None:
        requests = at_rate(requests, options.rate, options.seed)
    return requests


def _plan(options: argparse.Namespace, target: Any, requests: list[Request]) -> Plan:
    from llmtrace.load_test.endpoint_apis import Sending
    from llmtrace.load_test.measure import Plan

    timed = options.rate is not None or (options.trace is not None and not options.concurrency)
    names = ("prompt_tokens", "output_tokens", "shared_prefix", "seed", "rate", "duration")
    return Plan(
        sending=Sending(
            target=target, stream=not options.no_stream, ignore_eos=options.ignore_eos
        ),
        requests=requests,
        warm_up=_warm_up(options),
        concurrency=None if timed else options.concurrency or 4,
        seconds=options.duration,
        settings={name: getattr(options, name) for name in names}
        | {
            "dataset": None if options.dataset is None else options.dataset.name,
            "trace": None if options.trace is None else options.trace.name,
        },
    )


def _warm_up(options: argparse.Namespace) -> list[Request]:
    """Return requests of other texts than those that count, or a prefix cache would know them."""
    from dataclasses import replace

    from llmtrace.load_test.lengths import read_lengths
    from llmtrace.load_test.requests import drawn

    prompt, output = (
        read_lengths(text) for text in (options.prompt_tokens, options.output_tokens)
    )
    others = drawn(max(0, options.warm_up), prompt, output, seed=options.seed + _OTHER_SEED)
    return [replace(request, number=-1 - i) for i, request in enumerate(others)]


def _announced(plan: Plan) -> str:
    target = plan.sending.target
    loop = (
        "open loop" if plan.concurrency is None else f"closed loop of {plan.concurrency} clients"
    )
    return (
        f"{len(plan.requests)} requests to {target.name} at {target.url}, {loop}; Ctrl-C ends it"
    )


def _progress(count: int) -> Any:
    over = 0

    def done(_answered: object) -> None:
        nonlocal over
        over += 1
        if sys.stderr.isatty() or over == count:
            print(f"\r{over} of {count}", end="", file=sys.stderr, flush=True)

    return done
