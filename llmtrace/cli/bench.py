"""Declare the command that measures an endpoint under load."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llmtrace.cli.arguments import (
    Commands,
    add_budget_option,
    add_command,
    expect_new_folder,
    not_negative,
    positive,
)
from llmtrace.cli.extras import collector_module
from llmtrace.core.errors import ConfigError, needs_extra, writes

_BLOCKS: Final = 5

if TYPE_CHECKING:
    from llmtrace.demo.target import Target
    from llmtrace.load_test.endpoint_apis import Sending
    from llmtrace.load_test.result_folder import Server


def add_bench(commands: Commands) -> None:
    """Declare `llmtrace bench`."""
    bench = add_command(
        commands,
        "bench",
        _bench,
        "measure an endpoint under load, stage by stage",
        "Send an endpoint, of OpenAI's or Anthropic's API, a workload, and write what its "
        "requests waited for as a folder that `llmtrace compare` reads. Without an endpoint a "
        "simulated engine is used.",
        examples=(
            "llmtrace bench --endpoint http://127.0.0.1:8000/v1 --model llama --rate 4 --out a",
            "llmtrace bench --endpoint http://127.0.0.1:8000/v1 --model llama --concurrency 8",
            "llmtrace bench --arrivals mooncake.jsonl --requests 500 --out replayed",
            "llmtrace bench --sweep concurrency=1,2,4,8 --html curves.html",
            "llmtrace bench --find-rate --budget budget.yaml",
        ),
        docs="operate/bench.md",
    )
    _add_endpoint(bench)
    _add_workload(bench)
    _add_load(bench)
    _add_kinds(bench)
    _add_result(bench)


def _add_endpoint(bench: argparse.ArgumentParser) -> None:
    endpoint = bench.add_argument_group("endpoint")
    endpoint.add_argument(
        "--endpoint", action="append", default=[], metavar="URL",
        help="base URL (default: simulated engine); repeated, they are measured in turn",
    )  # fmt: skip
    endpoint.add_argument(
        "--model", action="append", default=[], metavar="NAME",
        help="model to request, needed by --endpoint: one, or one for each",
    )  # fmt: skip
    endpoint.add_argument(
        "--api", choices=("openai", "anthropic"), default="openai",
        help="API that it speaks (default: openai)",
    )  # fmt: skip
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
        "--arrivals", type=Path, metavar="FILE",
        help="trace whose times and lengths are replayed: Azure LLM inference (CSV) or Mooncake "
        "(JSON lines), plain or .gz",
    )  # fmt: skip
    work.add_argument(
        "--prompt-tokens", default="256", metavar="N",
        help="tokens of a prompt, about: 256, 100-400 or lognormal:256,0.8 (default: 256)",
    )  # fmt: skip
    work.add_argument(
        "--output-tokens", default="64", metavar="N",
        help="maximum tokens of a response, in the same forms (default: 64)",
    )  # fmt: skip
    work.add_argument(
        "--shared-prefix", type=not_negative, default=0, metavar="N",
        help="tokens at the start of each prompt that all share (default: 0)",
    )  # fmt: skip
    work.add_argument(
        "--turns", type=positive(int), default=1, metavar="N",
        help="prompts of a conversation, each sent after the response before it (default: 1)",
    )  # fmt: skip
    work.add_argument(
        "--requests", type=positive(int), metavar="N",
        help="requests to send (default: all of the file, else 200)",
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
        "--warm-up", type=not_negative, default=3, metavar="N",
        help="requests sent first that do not count (default: 3)",
    )  # fmt: skip
    load.add_argument(
        "--processes", type=positive(int), default=1, metavar="N",
        help="processes that send the requests, each its share (default: 1)",
    )  # fmt: skip
    load.add_argument(
        "--temperature", type=float, default=0.0, metavar="N",
        help="sampling temperature (default: 0, so that responses can be compared)",
    )  # fmt: skip
    load.add_argument("--no-stream", action="store_true", help="request whole responses")
    load.add_argument(
        "--ignore-eos", action="store_true",
        help="request all output tokens, an option of vLLM and SGLang",
    )  # fmt: skip


def _add_kinds(bench: argparse.ArgumentParser) -> None:
    kinds = bench.add_argument_group("instead of one run")
    one = kinds.add_mutually_exclusive_group()
    one.add_argument(
        "--sweep", metavar="WHAT=N,N",
        help="measure at several settings of one thing, as concurrency=1,2,4 or rate=0.5,1,2",
    )  # fmt: skip
    one.add_argument(
        "--find-rate", action="store_true",
        help="search for the highest rate that holds the budget with 95 %% certainty",
    )  # fmt: skip
    kinds.add_argument(
        "--blocks", type=positive(int), metavar="N",
        help="parts in which several endpoints are measured in turn (default: 5)",
    )  # fmt: skip


def _add_result(bench: argparse.ArgumentParser) -> None:
    result = bench.add_argument_group("result")
    result.add_argument("--out", type=Path, metavar="DIR", help="new folder to write")
    result.add_argument("--html", type=Path, metavar="FILE", help="page to write of the curves")
    add_budget_option(result)
    result.add_argument(
        "--target", action="append", default=[], metavar="URL",
        help="engine or GPU exporter whose signals are recorded meanwhile; may be repeated",
    )  # fmt: skip
    result.add_argument(
        "--gpus", type=positive(int), metavar="N",
        help="GPUs that serve the requests, for rates per GPU in `llmtrace compare`",
    )  # fmt: skip


def _bench(options: argparse.Namespace) -> int:
    with needs_extra("llmtrace bench", "demo"):
        from llmtrace.load_test import bench_runs as runs
        from llmtrace.load_test.bench_workload import Workload, read_sweep
    from llmtrace.budget import DEFAULT, read_budget

    _check(options)
    expect_new_folder("--out", options.out)
    for folder in filter(None, (options.out, options.html and options.html.parent)):
        with writes(folder):
            folder.mkdir(parents=True, exist_ok=True)
    names = [part.name for part in fields(Workload)]
    workload = Workload(**{name: getattr(options, name) for name in names})
    with ExitStack() as opened:
        sendings = [opened.enter_context(one) for one in _sendings(options)]
        job = runs.Job(
            workload=workload,
            budget=DEFAULT if options.budget is None else read_budget(options.budget),
            out=options.out,
            html=options.html,
            server=_server(options, opened),
        )
        if len(sendings) > 1:
            return runs.run_sides(job, sendings, options.blocks or _BLOCKS)
        if options.sweep is not None:
            return runs.run_sweep(job, sendings[0], *read_sweep(options.sweep))
        if options.find_rate:
            return runs.run_search(job, sendings[0])
        return runs.run_once(job, sendings[0])


def _check(options: argparse.Namespace) -> None:
    several = len(options.endpoint) > 1
    if options.find_rate and (options.rate or options.concurrency or options.arrivals):
        raise ConfigError(
            "--find-rate chooses the rate: not with --rate, --concurrency, --arrivals"
        )
    if several and (options.sweep or options.find_rate):
        raise ConfigError("--sweep and --find-rate measure one --endpoint")
    if options.blocks is not None and not several:
        raise ConfigError("--blocks are of several endpoints, measured in turn: repeat --endpoint")
    if options.html is not None and not (options.sweep or options.find_rate):
        raise ConfigError("--html is for --sweep and --find-rate; `llmtrace compare` has its own")
    if len(options.model) not in {0, 1, len(options.endpoint)}:
        raise ConfigError("give one --model for all endpoints, or one for each, in their order")
    if bool(options.endpoint) != bool(options.model):
        raise ConfigError("--endpoint and --model go together: the URL, and the model to request")
    swept = (options.sweep or "").partition("=")[0].strip().replace("-", "_")
    if swept in {"rate", "concurrency"} and (options.rate or options.concurrency):
        raise ConfigError(f"--sweep {swept} chooses the load: not with --rate, --concurrency")
    _check_file(options, swept)


def _check_file(options: argparse.Namespace, swept: str) -> None:
    """Refuse what says how requests are drawn, where they are of a file."""
    file = "--arrivals" if options.arrivals else "--dataset" if options.dataset else None
    if file is None:
        return
    drawn = {"prompt_tokens": "256", "shared_prefix": 0, "turns": 1}
    if options.arrivals:
        drawn["output_tokens"] = "64"
    for name, default in drawn.items():
        if swept == name or getattr(options, name) != default:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} is of requests that are drawn: those of {file} are not")


def _sendings(options: argparse.Namespace) -> Iterator[AbstractContextManager[Sending]]:
    """Yield how each endpoint is sent requests, as a block in which it is there."""
    from llmtrace.demo import target as targets

    if not options.endpoint:
        yield _sending(options, targets.simulated())
        return
    models = options.model * (len(options.endpoint) if len(options.model) == 1 else 1)
    for url, model in zip(options.endpoint, models, strict=True):
        yield _sending(options, targets.named(url, model, options.api_key_env))


@contextmanager
def _sending(
    options: argparse.Namespace, opened: AbstractContextManager[Target]
) -> Iterator[Sending]:
    from llmtrace.load_test.endpoint_apis import Sending

    with opened as target:
        yield Sending(
            # A simulated engine is not part of what other processes are sent.
            target=replace(target, engine=None),
            api=options.api,
            stream=not options.no_stream,
            ignore_eos=options.ignore_eos,
            temperature=options.temperature,
        )


def _server(options: argparse.Namespace, opened: ExitStack) -> Callable[[], Server]:
    """Begin to record the targets, and return what reports what is known of the server."""
    from llmtrace.load_test.result_folder import Server

    if not options.target:
        return lambda: Server(gpus=options.gpus)
    module = collector_module("commands.watch_targets", "llmtrace bench --target")
    watch = opened.enter_context(module.watching(options.target))
    return lambda: Server(
        gpus=options.gpus,
        facts=watch.facts,
        signals=tuple(watch.samples),
        reports=watch.reports,
        gpu_names=watch.gpus,
    )
