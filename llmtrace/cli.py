"""What does the `llmtrace` command take, and which function does each of its commands call?"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from llmtrace import __version__
from llmtrace.errors import ConfigError, LlmtraceError

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


def _semconv(options: argparse.Namespace) -> None:
    from llmtrace.semconv_page import page

    del options
    print(page(), end="")


def _version(options: argparse.Namespace) -> None:
    del options
    print(_VERSION)


if __name__ == "__main__":
    sys.exit(main())
