"""The errors that llmtrace raises, and when.

    LlmtraceError
    ├── ConfigError      a setting is wrong: what, where, and how to fix it (at set-up only)
    ├── DataError        input that cannot be read: a row, a budget, a beacon
    └── SourceError      something llmtrace reads from did not respond: an engine, a server

Nothing in this tree is ever raised through a wrapped stream: at run time llmtrace fails open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class LlmtraceError(Exception):
    """The one class to catch for everything llmtrace raises on purpose."""


class ConfigError(LlmtraceError):
    """A setting is wrong. Raised at set-up, never while a stream runs."""


class DataError(LlmtraceError):
    """Input that cannot be read as what it claims to be."""


class SourceError(LlmtraceError):
    """A server, engine or file llmtrace reads from is missing, dead or rejects the request."""


def missing_extra(feature: str, extra: str, package: str) -> ConfigError:
    """Make the error for a feature whose optional dependency is not installed."""
    return ConfigError(
        f"{feature} needs the package {package!r}, which is not installed; from a checkout of "
        f"llmtrace run: python -m pip install '.[{extra}]'"
    )


@contextmanager
def needs_extra(feature: str, extra: str, package: str | None = None) -> Iterator[None]:
    """Say which extra to install where an import inside the block fails.

    `feature` needs the import of `package`, by the name it is installed by; default: the module's.
    """
    try:
        yield
    except ImportError as error:
        raise missing_extra(feature, extra, package or error.name or "") from error


@contextmanager
def writes(what: object) -> Iterator[None]:
    """Name the file or folder that cannot be written, where an `OSError` is raised inside.

    Raises:
        SourceError: it cannot.
    """
    try:
        yield
    except OSError as error:
        raise SourceError(f"{what}: cannot be written: {explain_error(error)}") from error


def suggestion(word: str, known: Iterable[object], alike: float = 0.6) -> str:
    """Return a question for the known word that is closest to a mistyped one, or nothing.

    Example:
        >>> suggestion("triag", ["triage", "top"])
        ". Did you mean 'triage'?"
    """
    close = closest(word, known, alike)
    return f". Did you mean {close!r}?" if close else ""


def closest(word: str, known: Iterable[object], alike: float = 0.6) -> str:
    """Return the known word that is closest to a mistyped one; empty = none is close."""
    import difflib  # an application has no use for it

    return next(iter(difflib.get_close_matches(word, map(str, known), n=1, cutoff=alike)), "")


def explain_error(error: Exception) -> str:
    """Return the reason of an error on one line, without the path and the number of an `OSError`.

    Example:
        >>> explain_error(FileNotFoundError(2, "No such file or directory", "rows.jsonl"))
        'no such file or directory'
    """
    if (mark := getattr(error, "problem_mark", None)) is not None:  # of YAML
        return f"line {mark.line + 1}: {getattr(error, 'problem', '')}"
    reason = getattr(error, "strerror", None)
    return f"{reason[:1].lower()}{reason[1:]}" if reason else str(error)
