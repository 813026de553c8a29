"""The stat logger that vLLM calls after every step, and what it may cost vLLM.

vLLM runs `record` on its event loop after every step of the engine, and an exception in there
fails every request in progress. So nothing escapes here, the work is a few microseconds a finished
request, and a thread does the sending.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import time
import types
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from llmtrace.configure import read_environment
from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import internal_error, internal_errors
from llmtrace.engines.vllm_plugin.finished import Engine, finished_request
from llmtrace.exporters.otlp.settings import read_settings
from llmtrace.exporters.otlp.sink import otlp_sink

if TYPE_CHECKING:
    from llmtrace.exporters.sink import SpanSink

SWITCH: Final = "LLMTRACE_VLLM_PLUGIN"

# Below vLLM's own logger, whose handlers and format it then has.
logger = logging.getLogger("vllm.plugins.llmtrace")

_SERVICE: Final = "vllm"
_ON: Final = frozenset({"1", "true", "yes", "on"})
_OFF: Final = frozenset({"", "0", "false", "no", "off"})
_LOST: Final = ("vllm_plugin", "export.otlp.dropped", "export.otlp.rejected", "export.otlp.encode")
_PREFIXES: Final = ("LLMTRACE_", "OTEL_")
_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_TRACES_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"


class Reporter:
    """The stat logger without its base class, which is vLLM's.

    Takes what any version of vLLM passes: one engine's index or those of several.
    """

    def __init__(self, vllm_config: Any = None, *_indexes: Any, **_more: Any) -> None:
        self._sink: SpanSink | None = None
        self._engine = Engine(service=_SERVICE)
        self._reported = 0
        try:
            ours = {k: v for k, v in os.environ.items() if k.startswith(_PREFIXES)}
            if (reason := why_off(ours)) is not None:
                logger.info("llmtrace is installed and off: %s", reason)
                return
            _let_warnings_through()
            self._engine = _engine(vllm_config, read_environment(ours).service or _SERVICE)
            observability = getattr(vllm_config, "observability_config", None)
            spans_to = getattr(observability, "otlp_traces_endpoint", None)
            self._sink = _sink(frozenset(not_for_spans(ours, spans_to).items()))
        except ConfigError as error:
            logger.error("llmtrace exports nothing, vLLM is not affected: %s", error)  # noqa: TRY400
        except Exception as error:  # noqa: BLE001 - vLLM must start
            internal_error("vllm_plugin", error)

    def record(
        self,
        scheduler_stats: Any = None,
        iteration_stats: Any = None,
        mm_cache_stats: Any = None,
        engine_idx: Any = 0,
        *_args: Any,
        **_more: Any,
    ) -> None:
        """Take the statistics of one step of the engine; only finished requests count here."""
        del scheduler_stats, mm_cache_stats
        if self._sink is None or iteration_stats is None:
            return
        try:
            for stats in getattr(iteration_stats, "finished_requests", ()):
                self._report(stats, iteration_stats, engine_idx)
        except Exception as error:  # noqa: BLE001 - it would fail every request in vLLM
            internal_error("vllm_plugin", error)

    def _report(self, stats: Any, iteration_stats: Any, engine_index: Any) -> None:
        try:
            span = finished_request(
                stats,
                self._engine,
                finished_at=getattr(iteration_stats, "iteration_timestamp", None) or time.time(),
                engine_index=engine_index,
            )
            if span is None:
                older = f"vLLM {self._engine.version} does not identify the finished request"
                internal_error("vllm_plugin.request_id", f"{older}; 0.20 and later do")
            elif self._sink is not None:
                self._sink.write(span)
        except Exception as error:  # noqa: BLE001 - one odd request must not cost the others
            internal_error("vllm_plugin", error)

    def log(self, *_args: Any, **_more: Any) -> None:
        """Log what was dropped since vLLM last called, every 10 s or so."""
        try:
            counts = internal_errors()
            lost = {kind: counts[kind] for kind in _LOST if kind in counts}
            if (total := sum(lost.values())) > self._reported:
                self._reported = total
                logger.warning("llmtrace lost %d records of finished requests: %s", total, lost)
        except Exception as error:  # noqa: BLE001
            internal_error("vllm_plugin", error)

    def log_engine_initialized(self, *_args: Any, **_more: Any) -> None:
        """Log nothing: `__init__` has done so."""

    def record_sleep_state(self, *_args: Any, **_more: Any) -> None:
        """Ignore that the engine sleeps or wakes."""

    def record_admission_rejection(self, *_args: Any, **_more: Any) -> None:
        """Ignore rejected requests: their clients have the status."""


@lru_cache(maxsize=1)
def stat_logger_class() -> type:
    """Make the class that vLLM loads.

    Raises:
        ImportError: this vLLM has no stat loggers; vLLM logs it and goes on.
    """
    from vllm.v1.metrics import loggers

    # The one that is made once for all engines, where there is such.
    base = getattr(loggers, "AggregateStatLoggerBase", loggers.StatLoggerBase)
    made: Any = types.new_class("StatLogger", (Reporter, base))
    # What a later vLLM adds to its interface must not stop it from starting.
    made.__abstractmethods__ = frozenset()
    return made  # type: ignore[no-any-return]


def why_off(environ: Mapping[str, str]) -> str | None:
    """Return why the environment requests no records; `None` = it does request them.

    Raises:
        ConfigError: the switch is neither on nor off.
    """
    value = environ.get(SWITCH, "").strip().lower()
    if value not in _ON | _OFF:
        raise ConfigError(f"{SWITCH}={value!r}: set it to 1 or 0")
    if value in _OFF:
        return f"{SWITCH}=1 turns it on"
    return "LLMTRACE_DISABLED or OTEL_SDK_DISABLED" if read_environment(environ).disabled else None


def not_for_spans(environ: Mapping[str, str], spans_to: str | None) -> Mapping[str, str]:
    """Return the environment without what vLLM wrote into it for its own spans.

    `--otlp-traces-endpoint` goes into OTEL_EXPORTER_OTLP_TRACES_ENDPOINT before any stat logger is
    made, over what was there. So the general variable is what is left that was meant for us.
    Without one, records go where the spans go and as they go: by gRPC unless vLLM was set
    otherwise, without TLS unless the scheme is https, whatever else it is (`grpc://` is usual).

    Args:
        environ: as vLLM left it.
        spans_to: its `otlp_traces_endpoint`; `None` = it sends no spans.
    """
    own = dict(environ)
    if not spans_to or own.get(_TRACES_ENDPOINT) != spans_to:
        return own
    if own.get(_ENDPOINT, "").strip():
        del own[_TRACES_ENDPOINT]
    elif own.setdefault(_TRACES_PROTOCOL, "grpc") == "grpc":
        parts = urlsplit(spans_to if "://" in spans_to else f"//{spans_to}")
        scheme = "https" if parts.scheme == "https" else "http"
        own[_TRACES_ENDPOINT] = f"{scheme}://{parts.netloc}"
    return own


@lru_cache(maxsize=8)
def _sink(environ: frozenset[tuple[str, str]]) -> SpanSink:
    """Return the sender of the spans: one for a process and its settings, made once."""
    variables = dict(environ)
    sink = otlp_sink(environ=variables)
    atexit.register(sink.close)  # counts what does not go in time
    settings = read_settings("traces", environ=variables)
    where = urlsplit(settings.url if "://" in settings.url else f"//{settings.url}")
    host = where.netloc.rpartition("@")[2]
    logger.info("llmtrace exports finished requests to %s by %s", host, settings.protocol)
    return sink


def _let_warnings_through() -> None:
    # In vLLM the root logger lets errors through alone, and what llmtrace loses is a warning.
    ours = logging.getLogger("llmtrace")
    if ours.level == logging.NOTSET:
        ours.setLevel(logging.WARNING)


def _engine(vllm_config: Any, service: str) -> Engine:
    model = getattr(getattr(vllm_config, "model_config", None), "served_model_name", None)
    if isinstance(model, list | tuple) and model:
        model = model[0]
    parallel = getattr(vllm_config, "parallel_config", None)
    size = getattr(parallel, "data_parallel_size", 1)
    transfer = getattr(vllm_config, "kv_transfer_config", None)
    connector = getattr(transfer, "kv_connector", None)
    return Engine(
        service=service,
        model=model if isinstance(model, str) else None,
        replica=socket.gethostname() or None,
        version=_version(),
        parallel=isinstance(size, int) and size > 1,
        kv_connector=connector[:64] if isinstance(connector, str) and connector else None,
    )


def _version() -> str | None:
    version = getattr(sys.modules.get("vllm"), "__version__", None)
    return version if isinstance(version, str) else None
