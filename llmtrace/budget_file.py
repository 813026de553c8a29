"""How is a budget written, so that `read_budget` reads it back?"""

from __future__ import annotations

from typing import Any

from llmtrace.budget import Budget


def as_plain(budget: Budget) -> dict[str, Any]:
    """Return a budget as the mapping it could have been read from, what is not set left out.

    Example:
        >>> as_plain(Budget(name="chat", ttft_s=0.7, stages_s={"queue": 0.15}))
        {'name': 'chat', 'objective': 'p95', 'ttft': '700ms', 'stages': {'queue': '150ms'}}
    """
    durations = {"total": budget.total_s, "ttft": budget.ttft_s, "tpot": budget.tpot_s}
    found: dict[str, Any] = {"name": budget.name, "objective": f"p{100 * budget.objective:.10g}"}
    found |= {name: _ms(value) for name, value in durations.items() if value is not None}
    if budget.tokens is not None:
        found["tokens"] = budget.tokens
    if budget.stages_s:
        found["stages"] = {stage: _ms(limit) for stage, limit in budget.stages_s.items()}
    if budget.buffer_s:
        found["buffer"] = _ms(budget.buffer_s)
    if budget.availability is not None:
        found["availability"] = f"{100 * budget.availability:.10g}%"
    for label, patterns in (("model", budget.model), ("route", budget.route)):
        if patterns:
            found[label] = list(patterns)
    return found


def as_yaml(budget: Budget, remarks: tuple[str, ...] = ()) -> str:
    """Return the text of a budget file.

    Args:
        budget: the budget.
        remarks: comments on top, a line each.
    """
    import yaml

    text: str = yaml.safe_dump(as_plain(budget), sort_keys=False, allow_unicode=True)
    return "".join(f"# {line}\n" for line in remarks) + text


def _ms(seconds: float) -> str:
    return f"{round(seconds * 1000, 6):.10g}ms"
