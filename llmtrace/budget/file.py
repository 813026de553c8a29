"""Read a budget from a mapping or a file, and write it so that it can be read back."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from llmtrace.budget.model import Budget, Budgets
from llmtrace.core.errors import ConfigError, explain_error, needs_extra
from llmtrace.core.stages import STAGES

_KEYS: Final = (
    "name", "objective", "total", "ttft", "tpot", "turn_ttft", "tokens", "stages", "buffer",
    "availability", "model", "route",
)  # fmt: skip
_SEVERAL: Final = "budgets"
_UNITS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "": 1.0}
_DURATION: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(ms|s|m|)\s*")
_QUANTILE: Final = re.compile(r"p([0-9]{1,2}(?:\.[0-9]+)?)")
_PERCENT: Final = re.compile(r"([0-9]{1,2}(?:\.[0-9]+)?)\s*%")
_MAX_BYTES: Final = 1 << 20


def read_budget(given: str | Path | Mapping[str, Any]) -> Budget:
    """Read one budget from a mapping, or from a YAML or JSON file.

    Raises:
        ConfigError: it is not a budget; the message has the error, its place, and a correct value.
    """
    budgets = read_budgets(given)
    if len(budgets) != 1:
        names = ", ".join(budget.name for budget in budgets)
        where = "budget" if isinstance(given, Mapping) else str(given)
        raise ConfigError(f"{where}: contains several budgets ({names}), and one is expected here")
    return budgets.all[0]


def read_budgets(given: str | Path | Mapping[str, Any]) -> Budgets:
    """Read budgets from a mapping, or from a YAML or JSON file: one, or a list of `budgets`.

    Raises:
        ConfigError: as `read_budget`; or two budgets have the same name.
    """
    if isinstance(given, Mapping):
        return _budgets(given, "budget")
    try:
        path = Path(given)
    except TypeError:
        msg = f"budget: {given!r} is neither a mapping nor the path of a YAML or JSON file"
        raise ConfigError(msg) from None
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path}: larger than 1 MiB, which no budget is")
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot read this budget: {explain_error(error)}") from error
    content = _parse(path, text)
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path}: a budget is a mapping with the keys {', '.join(_KEYS)}")
    return _budgets(content, str(path))


def _budgets(content: Mapping[str, Any], where: str) -> Budgets:
    if _SEVERAL not in content:
        return Budgets((_budget(content, where),))
    listed = content[_SEVERAL]
    if len(content) > 1 or not isinstance(listed, list) or not listed:
        msg = f"{where}: {_SEVERAL} is a list of budgets, and then all there is in the file"
        raise ConfigError(msg)
    found = []
    for number, one in enumerate(listed):
        place = f"{where}: {_SEVERAL}[{number}]"
        if not isinstance(one, Mapping):
            raise ConfigError(f"{place}: a budget is a mapping with the keys {', '.join(_KEYS)}")
        found.append(_budget(one, place))
    for name, count in Counter(budget.name for budget in found).items():
        if count > 1:
            raise ConfigError(f"{where}: {count} budgets are called {name!r}; name them apart")
    return Budgets(tuple(found))


def _parse(path: Path, text: str) -> Any:
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: not JSON: {error}") from error
    with needs_extra("a budget in YAML", "demo", "PyYAML"):
        import yaml

        from llmtrace.budget.yaml_loader import load_yaml
    try:
        return load_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not YAML: {explain_error(error)}") from error


def _budget(content: Mapping[str, Any], where: str) -> Budget:
    unknown = [str(key) for key in content if key not in _KEYS]
    if unknown:
        msg = f"{where}: unknown key {', '.join(unknown)}; a budget has {', '.join(_KEYS)}"
        raise ConfigError(msg)
    stages = content.get("stages")
    stages = {} if stages is None else stages
    if not isinstance(stages, Mapping):
        msg = f"{where}: stages must map a stage to a duration, as in {{prefill: 400ms}}"
        raise ConfigError(msg)
    for stage in stages:
        if stage not in STAGES:
            msg = f"{where}: unknown stage {stage!r}; the stages are {', '.join(STAGES)}"
            raise ConfigError(msg)
    tokens = content.get("tokens")
    counted = isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0
    if tokens is not None and not counted:
        msg = f"{where}: tokens: {tokens!r} is not a whole number of output tokens, as in 50"
        raise ConfigError(msg)
    return Budget(
        name=_name(content.get("name"), where),
        objective=_objective(content.get("objective"), where),
        total_s=_duration(content.get("total"), f"{where}: total"),
        ttft_s=_duration(content.get("ttft"), f"{where}: ttft"),
        tpot_s=_duration(content.get("tpot"), f"{where}: tpot"),
        turn_ttft_s=_duration(content.get("turn_ttft"), f"{where}: turn_ttft"),
        tokens=tokens,
        stages_s={
            stage: limit
            for stage, value in stages.items()
            if (limit := _duration(value, f"{where}: stages.{stage}")) is not None
        },
        buffer_s=_duration(content.get("buffer"), f"{where}: buffer", least=0.0) or 0.0,
        availability=_share(content.get("availability"), f"{where}: availability"),
        model=_patterns(content.get("model"), f"{where}: model", "llama-*"),
        route=_patterns(content.get("route"), f"{where}: route", "chat"),
    )


def _share(value: Any, where: str) -> float | None:
    if value is None:
        return None
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    share = float(match[1]) / 100 if match else value
    if isinstance(share, float) and 0 < share < 1:
        return share
    raise ConfigError(f"{where}: {value!r} is not a share of the requests; write 99.5%, or 0.995")


def _patterns(value: Any, where: str, example: str) -> tuple[str, ...]:
    if value is None:
        return ()
    given = value if isinstance(value, list) else [value]
    if not given or not all(isinstance(one, str) and one for one in given):
        raise ConfigError(f"{where}: {value!r} is not a name or a list of names, as in {example}")
    return tuple(given)


def _name(value: Any, where: str) -> str:
    if value is None:
        return "default"
    if isinstance(value, str | int | float) and str(value):
        return str(value)
    raise ConfigError(f"{where}: name: {value!r} is not a name; write a short one, such as chat")


def _objective(value: Any, where: str) -> float:
    if value is None:
        return 0.95
    match = _QUANTILE.fullmatch(value) if isinstance(value, str) else None
    quantile = float(match[1]) / 100 if match else value
    if isinstance(quantile, float) and 0 < quantile < 1:
        return quantile
    raise ConfigError(f"{where}: objective: {value!r} is not a quantile; write p95, or 0.95")


# Below a nanosecond nothing is distinguished; a budget above a century is a slip.
_MIN_S: Final = 1e-9
_MAX_S: Final = 3.2e9


def _duration(value: Any, where: str, *, least: float = _MIN_S) -> float | None:
    """Read seconds from a number, or from text such as 250ms, 1.5s or 2m."""
    if value is None:
        return None
    seconds = None
    if isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        seconds = round(float(match[1]) * _UNITS[match[2]], 12)  # 700ms are 0.7 s, and no more
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    if seconds is None or not least <= seconds <= _MAX_S:
        msg = f"{where}: {value!r} is not a duration; write 250ms, 1.5s, or seconds as a number"
        raise ConfigError(msg)
    return float(seconds)


def as_plain(budget: Budget) -> dict[str, Any]:
    """Return a budget as the mapping it could have been read from, what is not set left out.

    Example:
        >>> as_plain(Budget(name="chat", ttft_s=0.7, stages_s={"queue": 0.15}))
        {'name': 'chat', 'objective': 'p95', 'ttft': '700ms', 'stages': {'queue': '150ms'}}
    """
    durations = {
        "total": budget.total_s,
        "ttft": budget.ttft_s,
        "tpot": budget.tpot_s,
        "turn_ttft": budget.turn_ttft_s,
    }
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
    """Return the text of a budget file, with remarks as comments on top, a line each."""
    import yaml

    text: str = yaml.safe_dump(as_plain(budget), sort_keys=False, allow_unicode=True)
    return "".join(f"# {line}\n" for line in remarks) + text


def _ms(seconds: float) -> str:
    return f"{round(seconds * 1000, 6):.10g}ms"
