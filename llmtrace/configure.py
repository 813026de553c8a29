"""`llmtrace.init`: what it sets up, from arguments and environment variables.

Arguments win over `LLMTRACE_*` variables, and those over OpenTelemetry's standard `OTEL_*` ones.
Everything wrong with them is reported here, before the first request.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import unquote

from llmtrace import exporters as export
from llmtrace.budget import Budget, Budgets, read_budgets
from llmtrace.core.content import DEFAULT_LIMIT, ContentPolicy
from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import fails_open, internal_error, wrong_use
from llmtrace.exporters.after_fork import at_exit
from llmtrace.exporters.sink import Receiver, Sink
from llmtrace.instrumentation import registry
from llmtrace.instrumentation.streams import finalize
from llmtrace.runtime import runtime
from llmtrace.runtime.runtime import Runtime
from llmtrace.runtime.trace_context import HeaderPolicy

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

_UNKNOWN_SERVICE: Final = "unknown_service"
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"", "0", "false", "no", "off"})
_CLOSE_TIMEOUT_S: Final = 5.0
# OpenTelemetry's own switch, and whether a value of it means spans: llmtrace writes no events.
_CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURE_VALUES: Final[Mapping[str, bool]] = {
    "": False,
    "no_content": False,
    "false": False,
    "event_only": False,
    "span_only": True,
    "span_and_event": True,
    "true": True,
}
_MIN_LIMIT: Final = 1
_MAX_LIMIT: Final = 1 << 20
_SETTLE_TIMEOUT_S: Final = 1.0
_SENT: Final = ("all", "own", "none")
# A name, an IPv4 address or an IPv6 one without brackets.
_HOST: Final = re.compile(
    r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*"
)


@dataclass(frozen=True, slots=True)
class Environment:
    """The settings an environment carries, read once and checked."""

    disabled: bool = False
    service: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    exporters: tuple[str, ...] | None = None
    budget: str | None = None
    sample: float | None = None
    record_content: bool = False


def read_environment(environ: Mapping[str, str]) -> Environment:
    """Read the `LLMTRACE_*` and `OTEL_*` variables `init` understands.

    Raises:
        ConfigError: one has an invalid value; the message names it.
    """
    if _disabled(environ):
        return Environment(disabled=True)
    resource = _resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    labels = {
        row_field: resource[key]
        for key, row_field in (("service.version", "version"), ("cloud.region", "region"))
        if key in resource
    }
    return Environment(
        service=environ.get("OTEL_SERVICE_NAME") or resource.get("service.name"),
        labels=labels,
        exporters=_exporters(environ),
        budget=environ.get("LLMTRACE_BUDGET") or None,
        sample=_sample(environ),
        record_content=_records_content(environ),
    )


def _disabled(environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() in _TRUE:
        return True
    text = environ.get("LLMTRACE_DISABLED", "").strip()
    if text.lower() not in _TRUE | _FALSE:
        raise ConfigError(f"LLMTRACE_DISABLED={text!r}: set it to true or false")
    return text.lower() in _TRUE


def _resource_attributes(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {key.strip(): unquote(value.strip()) for key, _, value in pairs}


def _exporters(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    named = environ.get("LLMTRACE_EXPORTERS")
    if named is not None:
        return tuple(name.strip() for name in named.split(",") if name.strip())
    traces = environ.get("OTEL_TRACES_EXPORTER")
    if traces:
        known = {"otlp": "otlp", "console": "console"}
        return tuple(known[t] for t in map(str.strip, traces.split(",")) if t in known)
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return ("otlp",) if any(environ.get(name) for name in endpoints) else None


def _sample(environ: Mapping[str, str]) -> float | None:
    name, text = "LLMTRACE_SAMPLE", environ.get("LLMTRACE_SAMPLE")
    if not text:
        sampler = environ.get("OTEL_TRACES_SAMPLER", "").strip().removeprefix("parentbased_")
        if sampler == "always_off":
            return 0.0
        if sampler not in {"", "always_on", "traceidratio"}:
            kept = f"OTEL_TRACES_SAMPLER={sampler!r} is unknown to llmtrace: it keeps all requests"
            wrong_use("sampler", sampler, kept)
        if sampler != "traceidratio":
            return None
        name, text = "OTEL_TRACES_SAMPLER_ARG", environ.get("OTEL_TRACES_SAMPLER_ARG") or "1"
    try:
        share: Any = float(text)
    except ValueError:
        share = text
    return _share(share, name)


def _records_content(environ: Mapping[str, str]) -> bool:
    text = environ.get(_CAPTURE, "").strip()
    recorded = _CAPTURE_VALUES.get(text.lower())
    if recorded is None:
        allowed = ", ".join(filter(None, _CAPTURE_VALUES))
        raise ConfigError(f"{_CAPTURE}={text!r} is not one of {allowed}")
    return recorded


def _share(share: Any, name: str) -> float:
    if isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share <= 1:
        return float(share)
    msg = f"{name}={share!r}: give the share of requests to keep, a number between 0 and 1"
    raise ConfigError(msg)


def init(
    service: str | None = None,
    *,
    exporters: Sequence[str | Sink] | None = None,
    budget: str | Path | Mapping[str, Any] | Budget | None = None,
    instrument: Sequence[str] = registry.MODULES,
    sample: float | None = None,
    region: str | None = None,
    version: str | None = None,
    tenant_metrics: bool = False,
    ask_usage: bool = True,
    record_content: bool | None = None,
    redact: Callable[[str], str | None] | None = None,
    content_limit: int = DEFAULT_LIMIT,
    own_hosts: Sequence[str] = (),
    headers: Literal["all", "own", "none"] = "all",
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Set llmtrace up for this process, once; a second time replaces the first.

    Each argument is described in full in docs/reference/configuration.md.

    Args:
        service: this application's name.
        exporters: where rows go: names such as `"otlp"` and `"prometheus:9464"`, or sinks.
        budget: a latency budget or its file, whose thresholds become exact bucket bounds.
        instrument: SDKs and HTTP libraries to instrument once they are imported.
        sample: share of requests whose spans are written, 0 to 1; counters always see all.
        region: where this process runs.
        version: what is deployed.
        tenant_metrics: label metrics by tenant too; tenants can be many.
        ask_usage: request the usage chunk, with vLLM's figures and token counts, and hide it.
        record_content: write prompts, responses and tool calls' contents on spans.
        redact: returns what to record of a text, or `None` for nothing.
        content_limit: most bytes of text in one attribute; what is longer is cut, and marked so.
        own_hosts: your gateways and engines, such as `*.svc.cluster.local`.
        headers: hosts that get `traceparent` and `X-Request-Id`; `"own"` are those of `own_hosts`.
        tracer_provider: the application's; default: OpenTelemetry's global one, if it set one.
        meter_provider: the same for the OpenTelemetry GenAI metrics.

    Raises:
        ConfigError: a setting is wrong; the message says which and how to fix it.
    """
    environment = read_environment(os.environ)
    if environment.disabled:
        shutdown()
        return
    settings = _names(environment, service=service, region=region, version=version) | {
        "sample": _share(_first(sample, environment.sample, 1.0), "sample"),
        "tracer_provider": _provider("tracer_provider", tracer_provider, "get_tracer"),
        "ask_usage": _flag("ask_usage", ask_usage),
        "content": _content(redact, content_limit, record_content, environment),
        "headers": _headers(headers, own_hosts),
    }
    limits, modules = _budgets(budget, environment.budget), _modules(instrument)
    by_tenant = _flag("tenant_metrics", tenant_metrics)
    exported = _exported(settings["service"], limits, by_tenant, meter_provider)
    sinks = _sinks(exporters, environment.exporters, exported)
    _start(Runtime(sinks=sinks, **settings), modules)


def _start(made: Runtime, modules: tuple[str, ...]) -> None:
    shutdown()
    runtime.activate(made)
    registry.when_imported(modules, shutdown)
    # Last registered, first run: before what closes the exporters that were made here.
    at_exit(_end_open)


def _first(*given: Any) -> Any:
    """Return the first value that was given."""
    return next((value for value in given if value is not None), None)


def use_clock(clock: Callable[[], int]) -> None:
    """Time what begins from here on by another clock, in monotonic nanoseconds."""
    active = runtime.active()
    if active is not None:
        runtime.activate(replace(active, clock=clock))


def _modules(instrument: Any) -> tuple[str, ...]:
    modules = _several(instrument, "instrument", registry.MODULES)
    for module in modules:
        if module not in registry.KNOWN:
            msg = f"instrument={module!r}: llmtrace instruments {', '.join(registry.KNOWN)}"
            raise ConfigError(msg)
    return modules


def _names(environment: Environment, **given: Any) -> dict[str, Any]:
    """Return the service and the labels: the arguments, which have to be text, come first."""
    for key, value in given.items():
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{key}={value!r} must be a string, as in {key}={str(value)!r}")
    texts = {key: value for key, value in given.items() if value is not None}
    service = texts.pop("service", "") or environment.service or _UNKNOWN_SERVICE
    return {"service": service, "labels": {**environment.labels, **texts}}


def _flag(name: str, given: Any) -> bool:
    if isinstance(given, bool):
        return given
    raise ConfigError(f"{name}={given!r} must be true or false")


def _provider(name: str, given: Any, method: str) -> Any:
    """Return a provider of OpenTelemetry's, or `None`, if it is one."""
    if given is not None and not callable(getattr(given, method, None)):
        raise ConfigError(f"{name}={given!r} has no {method}(): it is no OpenTelemetry provider")
    return given


@fails_open("record")
def _end_open() -> None:
    """End what is open, while the exporters still take it."""
    runtime.end_open()


def _content(
    redact: Any, limit: Any, recorded: Any, environment: Environment
) -> ContentPolicy | None:
    """Return how contents are recorded, `None` = not; what is wrong is found either way."""
    recorded = _flag("record_content", _first(recorded, environment.record_content))
    if redact is not None and not callable(redact):
        msg = f"redact={redact!r} must be a function that takes a text and returns one"
        raise ConfigError(msg)
    whole = isinstance(limit, int) and not isinstance(limit, bool)
    if not whole or not _MIN_LIMIT <= limit <= _MAX_LIMIT:
        msg = f"content_limit={limit!r}: give bytes, a whole number from 1 to {_MAX_LIMIT}"
        raise ConfigError(msg)
    return ContentPolicy(limit, redact) if recorded else None


def _headers(sent: Any, own_hosts: Any) -> HeaderPolicy:
    if sent not in _SENT:
        raise ConfigError(f"headers={sent!r} is not one of {', '.join(_SENT)}")
    hosts = _several(own_hosts, "own_hosts", ("gateway.internal",))
    for host in hosts:
        if not isinstance(host, str) or not _HOST.fullmatch(host):
            raise ConfigError(
                f"own_hosts: {host!r} is not the name of a host, without scheme and port, as in "
                "gateway.internal or *.svc.cluster.local"
            )
    return HeaderPolicy(sent, frozenset(host.lower() for host in hosts))


def _budgets(
    given: str | Path | Mapping[str, Any] | Budget | None, otherwise: str | None
) -> Budgets | None:
    if isinstance(given, Budget):
        return Budgets((given,))
    named = _first(given, otherwise)
    return None if named is None else read_budgets(named)


def _exported(
    service: str,
    limits: Budgets | None,
    tenant_metrics: bool,
    meter_provider: MeterProvider | None,
) -> export.ExportSettings:
    return export.ExportSettings(
        service=service,
        thresholds_s={} if limits is None else limits.thresholds_s(),
        budget_seconds={} if limits is None else limits.allocations_s(),
        tenant_metrics=tenant_metrics,
        meter_provider=_provider("meter_provider", meter_provider, "get_meter"),
    )


def _several(given: Any, name: str, known: Sequence[str]) -> tuple[Any, ...]:
    # Text is a sequence too, of letters, and to leave out the brackets is an easy slip.
    if isinstance(given, Iterable) and not isinstance(given, str):
        return tuple(given)
    raise ConfigError(f"{name}={given!r} must be a list, as in {name}=[{known[0]!r}]")


def _sinks(
    given: Any, otherwise: Sequence[str] | None, settings: export.ExportSettings
) -> tuple[Sink, ...]:
    chosen = _several(_first(given, otherwise, ("console",)), "exporters", export.NAMES)
    own: list[Sink] = [one for one in dict.fromkeys(chosen) if not isinstance(one, str)]
    for one in own:
        write = getattr(one, "write", None)
        if not callable(write) or iscoroutinefunction(write):
            raise ConfigError(
                f"exporters: {one!r} is neither a name ({', '.join(export.NAMES)}) nor an object "
                "with write(row), which is not async"
            )
    return (*export.build_all((one for one in chosen if isinstance(one, str)), settings), *own)


def flush(timeout_s: float = _CLOSE_TIMEOUT_S) -> bool:
    """Send what the exporters have queued; return whether all was sent in `timeout_s` seconds."""
    active, deadline = runtime.active(), time.monotonic() + timeout_s
    settled = finalize.flush_deferred(timeout_s)
    if active is None:
        return settled
    left = []
    for sink in active.receivers:
        left_s = max(0.0, deadline - time.monotonic())
        left.append(_ended(sink, partial(sink.flush, left_s)))
    return settled and all(left)


def shutdown() -> None:
    """End what is open as cancelled, send what is left, stop, and undo every instrumentation.

    Done when the interpreter exits, too.
    """
    before = runtime.activate(None)
    registry.undo_all()
    if before is not None:
        _end_open()
        finalize.flush_deferred(_SETTLE_TIMEOUT_S)
        for sink in before.receivers:
            _ended(sink, sink.close)


def _ended(sink: Receiver, act: Callable[[], object]) -> object:
    """Return what flushing or closing a sink returns; `False` if it raises, which is counted."""
    try:
        return act()
    except Exception as error:  # noqa: BLE001 - one bad sink must not cost the others
        internal_error(f"export.{sink.name}", error)
        return False


at_exit(shutdown)
