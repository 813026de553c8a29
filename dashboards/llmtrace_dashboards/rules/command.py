"""Run `llmtrace slo`: write or print the rules made from a budget file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TextIO
from urllib.parse import urlsplit

from llmtrace.budget import DEFAULT, Budget, Budgets, read_budgets
from llmtrace.errors import ConfigError, SourceError, explain_error
from llmtrace_dashboards.rules.burn_rate import RuleSettings
from llmtrace_dashboards.rules.recording_rules import as_yaml, engine_file, rule_files
from llmtrace_dashboards.rules.slo import promised, slos, unalerted
from llmtrace_dashboards.rules.sloth import openslo, sloth

What = Literal["rules", "engines", "sloth", "openslo"]


def run(
    what: What,
    *,
    out: TextIO,
    warnings: TextIO,
    budget: Path | None = None,
    folder: Path | None = None,
    grafana: str | None = None,
    runbooks: str | None = None,
    collector: str | None = None,
    collector_job: str | None = None,
    unified: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Print the files made from a budget, or write them into a folder.

    What a budget leaves without an alert is written to `warnings`. `engines` needs the groups of
    rules that unify engines' metrics, as `unified`.

    Raises:
        ConfigError: the budget or an option is wrong.
        SourceError: the folder cannot be written to.
    """
    budgets = Budgets((DEFAULT,)) if budget is None else read_budgets(budget)
    given: dict[str, Any] = {
        "dashboards": _url(grafana, "--grafana"),
        "runbooks": runbooks,
        "collector": _url(collector, "--collector"),
        "collector_job": collector_job,
    }
    settings = replace(
        RuleSettings(), **{name: value for name, value in given.items() if value is not None}
    )
    named = "" if budget is None else f" --budget {budget.name}"
    made = made_from(what, budgets, settings, f"Made by `llmtrace slo {what}{named}`.", unified)
    if what != "engines":  # it has no alert in any case
        warn_unalerted(budgets, warnings)
    if folder is None:
        print("---\n".join(made.values()), end="", file=out)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in made.items():
            (folder / name).write_text(text, encoding="utf-8")
            print(f"{folder / name}", file=out)
    except OSError as error:
        raise SourceError(f"{folder}: cannot write there: {explain_error(error)}") from error


def warn_unalerted(budgets: Iterable[Budget], warnings: TextIO) -> None:
    """Say which limits of budgets no alert can be made of."""
    for sentence in unalerted(budgets):
        print(f"llmtrace: warning: {sentence}", file=warnings)


def made_from(
    what: What,
    budgets: Budgets,
    settings: RuleSettings,
    remark: str,
    unified: Sequence[Mapping[str, Any]] = (),
) -> dict[str, str]:
    """Return the text of each file, by its name."""
    if what == "rules":
        files: dict[str, Any] = dict(rule_files(budgets, settings))
    elif what == "engines":
        files = dict(engine_file(budgets, unified, settings))
    else:
        alerting = slos(budgets)
        files = (
            dict(sloth(alerting, settings))
            if what == "sloth"
            else {"openslo.yaml": openslo(promised(budgets), settings)}
        )
    return {name: as_yaml(content, remark) for name, content in files.items()}


def _url(given: str | None, option: str) -> str | None:
    if given is None:
        return None
    parts = urlsplit(given)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise ConfigError(f"{option}: {given!r} is not a URL such as https://name.example.org")
    return given
