"""What does the `llmtrace` command take, and which function does each of its commands call?"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from llmtrace import __version__
from llmtrace.errors import ConfigError, LlmtraceError, missing_extra

INTERRUPTED: Final = 130
_WIDEST: Final = 120
_VERSION: Final = f"llmtrace {__version__}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0 is success, 1 a failure, 2 a wrong option or setting, 130 an interrupt by Ctrl-C.

    Args:
        arguments: what follows `llmtrace`; default: the process's own.
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a bar is no reason to fail.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if options.command is None:
        parser.print_help()
        return 2
    try:
        options.run(options)
        sys.stdout.flush()
    except LlmtraceError as error:
        print(f"llmtrace: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        print("llmtrace: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; what is buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="llmtrace",
        description="Seven stages of a streaming LLM request that add up to what the user waited.",
    )
    parser.add_argument("-V", "--version", action="version", version=_VERSION)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_demo(commands)
    _add_waterfall(commands)
    _add_rows(commands)
    _add_doctor(commands)
    _add(commands, "semconv", _semconv, "print the span attributes of a request, as Markdown")
    _add(commands, "version", _version, "print the version")
    return parser


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], None],
    help_text: str,
    description: str | None = None,
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=help_text, description=description or help_text)
    command.set_defaults(run=run)
    return command


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = _add(
        commands,
        "demo",
        _demo,
        "ask an engine as many users would, and show where the time goes",
        "Ask an engine as many users would, and show where the time of their requests went. "
        "Without options the engine is a simulated one, started on loopback: no GPU, key or "
        "server is needed.",
    )
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
        "--seconds", type=_positive(float), metavar="S", help="ask for so long (default: 24)"
    )
    load.add_argument(
        "--requests", type=_positive(int), metavar="N", help="make at most N requests"
    )
    load.add_argument(
        "--concurrency",
        type=_positive(int),
        default=12,
        metavar="N",
        help="users asking at once in the rush; a quarter of them before it (default: 12)",
    )
    shown = demo.add_argument_group("what is shown")
    shown.add_argument(
        "--budget", type=Path, metavar="FILE", help="latency budget to hold the stages against"
    )
    shown.add_argument(
        "--json", type=Path, metavar="FILE", help="write each request's row there, one a line"
    )


def _add_waterfall(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    waterfall = _add(
        commands,
        "waterfall",
        _waterfall,
        "draw where the time of one request went",
        "Draw where the time of one request went, from rows `llmtrace demo --json` wrote.",
    )
    waterfall.add_argument("file", type=Path, metavar="FILE", help="rows, one JSON object a line")
    which = waterfall.add_mutually_exclusive_group()
    which.add_argument(
        "--slowest", action="store_true", help="the one that took longest (the default)"
    )
    which.add_argument(
        "--request", metavar="ID", help="the one with this request, response or trace id"
    )


def _add_rows(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    rows = _add(
        commands,
        "rows",
        _rows,
        "print the requests that another tool has recorded, as rows",
        "Print the requests that another tool has recorded, as rows: one JSON object a line, as "
        "`llmtrace waterfall` reads them. Langfuse's project is the one that LANGFUSE_PUBLIC_KEY, "
        "LANGFUSE_SECRET_KEY and LANGFUSE_BASE_URL name.",
    )
    rows.add_argument("source", choices=("langfuse",), help="where they are")
    rows.add_argument(
        "--from", dest="start", type=_time, metavar="TIME",
        help="requests from then on, as 2026-11-21T14:00 (default: an hour before --to)",
    )  # fmt: skip
    rows.add_argument(
        "--to", dest="end", type=_time, metavar="TIME", help="and before then (default: now)"
    )
    rows.add_argument("--environment", metavar="NAME", help="only of this environment")
    rows.add_argument(
        "--most", type=_positive(int), default=10_000, metavar="N",
        help="read no more than about N observations (default: 10000)",
    )  # fmt: skip


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    doctor = _add(
        commands,
        "doctor",
        _doctor,
        "check what an engine or gateway reports, and which settings it lacks",
        "Check an engine, gateway or GPU exporter from outside: which it is, what it reports and "
        "what not, and which settings would mend that. Exit status 1 = it cannot be read, or "
        "lacks a signal it should report.",
    )
    doctor.add_argument("url", metavar="URL", help="its address, as http://host:8000")
    doctor.add_argument(
        "--ask", action="store_true",
        help="have it generate one token, to see what its answers carry",
    )  # fmt: skip
    doctor.add_argument(
        "--token-file", type=Path, metavar="FILE", help="a file with the token it wants"
    )
    doctor.add_argument(
        "--timeout", type=_positive(float), default=10.0, metavar="S",
        help="wait so long for each answer (default: 10)",
    )  # fmt: skip
    doctor.add_argument(
        "--profiles", type=Path, metavar="DIR", help="a folder with profiles of your own"
    )
    doctor.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        msg = f"{text!r} is not a time such as 2026-11-21T14:00 or 2026-11-21T14:00+01:00"
        raise argparse.ArgumentTypeError(msg) from error


def _positive(kind: type[int | float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = 0
        if not 0 < number < float("inf"):
            whole = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {whole} above 0")
        return number

    return read


def _demo(options: argparse.Namespace) -> None:
    from llmtrace.demo.options import DemoOptions
    from llmtrace.demo.run import run

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
        )
    )


def _waterfall(options: argparse.Namespace) -> None:
    from llmtrace.redraw import redraw

    width = min(shutil.get_terminal_size().columns, _WIDEST)
    print(redraw(options.file, options.request, width))


def _rows(options: argparse.Namespace) -> None:
    from llmtrace.jsonl import write_rows
    from llmtrace.langfuse_rows import read_rows

    end = options.end or datetime.now().astimezone()
    start = options.start or end - timedelta(hours=1)
    if start >= end:
        raise ConfigError("--from is not before --to")
    found = read_rows(start, end, environment=options.environment, most=options.most)
    write_rows(sys.stdout, found.rows)
    said = [_count(len(found.rows), "row")]
    if found.skipped:
        left_out = _count(found.skipped, "observation")
        said.append(f"{left_out} left out: not over, or not a request")
    if found.more:
        said.append("there may be more: raise --most, or take a shorter time")
    print("; ".join(said), file=sys.stderr)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _doctor(options: argparse.Namespace) -> None:
    _collector("doctor", "llmtrace doctor").run(
        options.url,
        token_file=options.token_file,
        timeout_s=options.timeout,
        ask=options.ask,
        profiles=options.profiles,
        as_json=options.json,
    )


def _collector(module: str, feature: str) -> Any:
    """Return a module of the collector, which is built on this package: known by name alone."""
    try:
        return import_module(f"llmtrace_collector.{module}")
    except ImportError as error:
        raise missing_extra(feature, "collector", error.name or "llmtrace_collector") from error


def _semconv(options: argparse.Namespace) -> None:
    from llmtrace.semconv_page import page

    del options
    print(page(), end="")


def _version(options: argparse.Namespace) -> None:
    del options
    print(_VERSION)


if __name__ == "__main__":
    sys.exit(main())
