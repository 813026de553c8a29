"""Run the command that measures an endpoint under load."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from llmtrace.cli.extras import collector_module
from llmtrace.core.errors import ConfigError, missing_extra

if TYPE_CHECKING:
    from llmtrace.demo.target import Target
    from llmtrace.load_test.endpoint_apis import Sending
    from llmtrace.load_test.result_folder import Server


def run_bench(options: argparse.Namespace) -> int:
    """Run `llmtrace bench` as its options say."""
    try:
        from llmtrace.load_test import bench_runs as runs
        from llmtrace.load_test.bench_workload import Workload, read_sweep
    except ImportError as error:
        raise missing_extra("llmtrace bench", "demo", error.name or "") from error
    from llmtrace.budget import DEFAULT, read_budget

    _check(options)
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
            return runs.run_sides(job, sendings, options.blocks)
        if options.sweep is not None:
            return runs.run_sweep(job, sendings[0], *read_sweep(options.sweep))
        if options.find_rate:
            return runs.run_search(job, sendings[0])
        return runs.run_once(job, sendings[0])


def _check(options: argparse.Namespace) -> None:
    several = len(options.endpoint) > 1
    if options.find_rate and (options.rate or options.concurrency or options.trace):
        raise ConfigError("--find-rate chooses the rate: not with --rate, --concurrency, --trace")
    if several and (options.sweep or options.find_rate):
        raise ConfigError("--sweep and --find-rate measure one --endpoint")
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
    file = "--trace" if options.trace else "--dataset" if options.dataset else None
    if file is None:
        return
    drawn = {"prompt_tokens": "256", "shared_prefix": 0, "turns": 1}
    if options.trace:
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
