"""Run `llmtrace slo`: write or print the rules made from a budget file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TextIO, get_args
from urllib.parse import urlsplit

from llmtrace.budget import DEFAULT, Budget, Budgets, read_budgets
from llmtrace.core.errors import ConfigError, writes
from llmtrace_dashboards.rules.burn_rate import RuleSettings, Severity
from llmtrace_dashboards.rules.recording_rules import as_yaml, engine_file, rule_files
from llmtrace_dashboards.rules.slo import promised, slos, unalerted
from llmtrace_dashboards.rules.sloth import openslo, sloth

What = Literal["rules", "engines", "sloth", "openslo"]
RuleFormat = Literal["prometheus", "prometheusrule"]


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
    normalised: Sequence[Mapping[str, Any]] = (),
    rule_format: RuleFormat = "prometheus",
    severities: Sequence[str] = (),
) -> None:
    """Print the files made from a budget, or write them into a folder.

    What a budget leaves without an alert is written to `warnings`. `engines` needs the groups of
    rules that normalise engines' metrics, as `normalised`. `severities` are words for those of
    alerts, each as `page=critical`.

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
    remark = f"Made by `llmtrace slo {what}{named}`."
    files = files_from(what, budgets, settings, normalised)
    if what in {"rules", "engines"}:
        _rename_severities(files.values(), _severities(severities))
        if rule_format == "prometheusrule":
            files = dict(map(_manifest, files.items()))
    elif rule_format != "prometheus" or severities:
        raise ConfigError(f"--format and --severity are of rules: leave them out of {what}")
    made = {name: as_yaml(content, remark) for name, content in files.items()}
    if what != "engines":  # it has no alert in any case
        warn_unalerted(budgets, warnings)
    if folder is None:
        print("---\n".join(made.values()), end="", file=out)
        return
    with writes(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in made.items():
            (folder / name).write_text(text, encoding="utf-8")
            print(f"{folder / name}", file=out)


def _rename_severities(files: Iterable[Mapping[str, Any]], renamed: Mapping[str, str]) -> None:
    for file in files:
        for rule in (rule for group in file["groups"] for rule in group["rules"]):
            labels = rule.get("labels", {})
            if (severity := labels.get("severity")) in renamed:
                labels["severity"] = renamed[severity]


def warn_unalerted(budgets: Iterable[Budget], warnings: TextIO) -> None:
    """Say which limits of budgets no alert can be made of."""
    for sentence in unalerted(budgets):
        print(f"llmtrace: warning: {sentence}", file=warnings)


def files_from(
    what: What,
    budgets: Budgets,
    settings: RuleSettings,
    normalised: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the content of each file, by its name."""
    if what == "rules":
        return dict(rule_files(budgets, settings))
    if what == "engines":
        return dict(engine_file(budgets, normalised, settings))
    if what == "sloth":
        return dict(sloth(slos(budgets), settings))
    return {"openslo.yaml": openslo(promised(budgets), settings)}


def _manifest(file: tuple[str, Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Make a file of rules one manifest of Prometheus's operator."""
    name, content = file
    stem = name.removesuffix(".yaml")
    return f"prometheusrule-{stem}.yaml", {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": f"llmtrace-{stem}", "labels": {"app.kubernetes.io/name": "llmtrace"},
        },
        "spec": content,
    }  # fmt: skip


def _severities(given: Sequence[str]) -> dict[str, str]:
    renamed = {}
    for one in given:
        ours, _, yours = one.partition("=")
        if ours not in get_args(Severity) or not yours.strip():
            known = " or ".join(f"{word}=WORD" for word in get_args(Severity))
            raise ConfigError(f"--severity: {one!r}: expected {known}")
        renamed[ours] = yours.strip()
    return renamed


def _url(given: str | None, option: str) -> str | None:
    if given is None:
        return None
    parts = urlsplit(given)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise ConfigError(f"{option}: {given!r} is not a URL such as https://name.example.org")
    return given
