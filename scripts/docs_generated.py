"""Which parts of the documents are printed from the code, and how?"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry
from runbook_index import PAGES as RUNBOOKS

from llmtrace.budget import DEFAULT
from llmtrace.budget.file import as_plain
from llmtrace.cli import make_parser
from llmtrace.cli.parser import Parser
from llmtrace.core.engine_figures import REPORTS
from llmtrace.core.flat_row import flat_kinds
from llmtrace.core.row import from_dict
from llmtrace.core.row_fields import MARKS, NETWORK, PLAIN, RAW, REPORTED, UNSPLIT
from llmtrace.exporters.prometheus.sink import LABELS, PrometheusSink
from llmtrace.semconv import docs
from llmtrace.semconv.attributes import STAGE_TIMES
from llmtrace_collector.config.fields import leaves, variable
from llmtrace_collector.config.schema import PREFIX, Config
from llmtrace_collector.serve.routes import ADDRESSES
from llmtrace_collector.signals.definitions import SIGNALS
from llmtrace_collector.signals.profile import Profile, builtin_profiles, show_version
from llmtrace_dashboards.rules.burn_rate import RuleSettings
from llmtrace_dashboards.rules.recording_series import (
    ALLOWED,
    REMAINING,
    SITE_LEVEL,
    bad_rate,
    bad_ratio,
    bad_total,
    valid_count,
    valid_rate,
    valid_total,
)

_TARGET: Final = re.compile(r"^([\w-]+):.*?## (.+)$", re.MULTILINE)
_WIDTH: Final = "80"
_COMMON_LABELS: Final = frozenset(LABELS)


def cli() -> str:
    """Print the help of every command."""
    width, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), _WIDTH
    try:
        return "\n\n".join(_helps("llmtrace", make_parser()))
    finally:
        del os.environ["COLUMNS"]
        if width is not None:
            os.environ["COLUMNS"] = width


def _helps(title: str, parser: Parser) -> Iterator[str]:
    """Yield the help of a command, and of the commands below it."""
    yield f"## `{title}`\n\n```text\n{parser.format_help().strip()}\n```"
    for name, command in parser.commands.items():
        yield from _helps(f"{title} {name}", command)


def metrics() -> str:
    """List the Prometheus metrics."""
    sink = PrometheusSink(registry=CollectorRegistry())
    lines = [
        "| metric | type | additional labels | meaning |",
        "|---|---|---|---|",
    ]
    for family in sink.describe():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        names: tuple[str, ...] = getattr(family, "_labelnames", ())
        labels = [label for label in names if label not in _COMMON_LABELS]
        label_names = ", ".join(f"`{label}`" for label in labels)
        lines.append(f"| `{name}` | {family.type} | {label_names} | {family.documentation} |")
    sink.close()
    return "\n".join(lines)


def budget() -> str:
    """Print the default budget as the JSON file it could have been."""
    return f"```json\n{json.dumps(as_plain(DEFAULT), indent=2)}\n```"


def recorded_series() -> str:
    """List what the recording rules of the default budget make."""
    settings = RuleSettings()
    lines = ["| series | meaning |", "|---|---|"]
    words_of = {
        bad_rate(): "Requests per second that miss the SLO.",
        valid_rate(): "Requests per second that count for the SLO.",
        bad_total(): "Bad requests per second, over all label sets; longer windows sum it.",
        valid_total(): "Valid requests per second, over all label sets.",
        ALLOWED: "The share that may miss the SLO.",
        REMAINING: "Remaining share of 30 days' error budget: 1 = all of it.",
    }
    for window in (*settings.windows, settings.period):
        words_of[bad_ratio(window)] = (
            f"Share that missed the SLO over {window}; divided by `allowed`, the burn rate."
        )
    for window in settings.short_windows:
        words_of[valid_count(window)] = f"Valid requests in {window}."
    words_of[f"{SITE_LEVEL}:…"] = "The same per `cluster` and `namespace`, except for 30 days."
    return "\n".join([*lines, *(f"| `{name}` | {words} |" for name, words in words_of.items())])


def targets() -> str:
    """List what `make` can make, by the Makefile's own comments."""
    lines = ["| command | effect |", "|---|---|"]
    makefile = Path(__file__).resolve().parent.parent / "Makefile"
    for name, words in _TARGET.findall(makefile.read_text(encoding="utf-8")):
        lines.append(f"| `make {name}` | {words} |")
    return "\n".join(lines)


def protocols() -> str:
    """Draw the table of protocols and endings that the tests go through."""
    return _drawn("tests.protocols.table")


def contact() -> str:
    """Draw the table of other people's packages that the contact suite runs with."""
    return _drawn("tests.contact.versions")


def _drawn(module: str) -> str:
    root = str(Path(__file__).resolve().parent.parent)
    sys.path.insert(0, root)
    try:
        table = importlib.import_module(module)
    finally:
        sys.path.remove(root)
    drawn: str = table.markdown()
    return drawn


def engine_signals() -> str:
    """Lay out which unified signals each engine reports, and how that is known."""
    return _matrix("engine", "engine")


def gateway_signals() -> str:
    """Lay out the same of gateways."""
    return _matrix("gateway", "gateway")


def gpu_signals() -> str:
    """Lay out the same of GPU exporters; our own reader has every signal none of them gives."""
    return _matrix("gpu", "gpu")


def _matrix(subsystem: str, kind: str) -> str:
    profiles = [one for one in builtin_profiles() if one.kind == kind]
    lines = [
        f"| signal | metric | {' | '.join(one.title for one in profiles)} |",
        "|---" * (2 + len(profiles)) + "|",
    ]
    for name, signal in SIGNALS.items():
        if signal.subsystem == subsystem:
            found = [one.signals.get(name) for one in profiles]
            cells = [families[0].evidence if families else "" for families in found]
            label = f"{{{signal.label}}}" if signal.label else ""
            lines.append(
                f"| `{name}`: {signal.help} | `{signal.metric}{label}` | {' | '.join(cells)} |"
            )
    return "\n".join(lines)


def engine_figures() -> str:
    """List between which two events each figure of a request lies."""
    lines = [
        "| server | where | versions | enabled by | timing | from | to | stage |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for report in REPORTS:
        where = f"{report.carrier}, `{report.key}`" if report.key else report.carrier
        for one in report.figures:
            path = f"{one.path}` to `{one.upto}" if one.upto else one.path
            lines.append(
                f"| {report.title} | {where} | {report.versions} | {report.setting} | `{path}` "
                f"| {one.since} | {one.until} | {one.stage or 'none'} |"
            )
    return "\n".join(lines)


def engine_names() -> str:
    """List where each profile finds each signal."""
    return "\n\n".join(_names(one) for one in builtin_profiles())


def _names(profile: Profile) -> str:
    lines = [
        f"### {profile.title}",
        "",
        f"Path: `{profile.path}`" + (f"; versions {profile.checked}" if profile.checked else ""),
        "",
        "| signal | name | versions | evidence | remark |",
        "|---|---|---|---|---|",
    ]
    for signal, _, family in profile.families():
        since = show_version(family.since) if family.since else ""
        until = show_version(family.until) if family.until else ""
        versions = f"{since} to {until}" if until else f"{since} on" if since else ""
        where = "".join(f"{{{label}={value}}}" for label, value in family.where)
        remarks = [f"when {family.when}" if family.when else "", family.note or ""]
        if family.per_block:
            remarks.append("counts blocks; multiplied by the block size exposed with it")
        remark = "; ".join(one for one in remarks if one)
        lines.append(
            f"| {signal.name} | `{family.name}{where}` | {versions} | {family.evidence} "
            f"| {remark} |"
        )
    lines += [f"| {name} | none | | | {why} |" for name, why in profile.absent.items()]
    return "\n".join(lines)


def collector_settings() -> str:
    """Print every setting of `llmtrace collect`."""
    lines = ["| setting | variable | default | meaning |", "|---|---|---|---|"]
    for key, default, words in leaves(Config):
        name, default_text = ".".join(key), _default(key, default)
        lines.append(f"| `{name}` | `{variable(PREFIX, key)}` | {default_text} | {words} |")
    return "\n".join(lines)


def _default(key: tuple[str, ...], default: Any) -> str:
    if key == ("data",):
        return "`~/.local/state/llmtrace`"
    if key == ("budget",):
        return f"`{DEFAULT.name}`"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if default in (None, ()):
        return ""
    if key[-1].endswith("_bytes"):
        return f"`{default >> 20}MB`"
    if isinstance(default, float):
        return f"`{default:g}`"
    return f"`{default}`"


def collector_api() -> str:
    """Print the addresses of the collector's API."""
    lines = ["| path | methods | returns |", "|---|---|---|"]
    lines += [f"| `{path}` | {methods} | {words} |" for path, methods, words in ADDRESSES]
    return "\n".join(lines)


_ROW: Final[Mapping[str, Any]] = {
    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7",
    "start": 1_790_000_000_000_000_000, "service": "shop", "operation": "chat",
    "provider": "openai", "model": "gpt-4o-mini", "server": "api.openai.com:443",
    "route": "/chat", "tenant": "acme", "region": "eu", "client": "openai 2.8",
    "version": "1.4.0", "outcome": "success", "finish_reason": "stop", "http_status": 200,
    "prompt_tokens": 812, "cached_tokens": 512, "output_tokens": 120, "attempts": 2,
    "attempt_log": [
        {"start_s": 0.002, "duration_s": 0.08, "backoff_s": 0.5, "status": 429,
         "retry_after_s": 0.5},
        {"start_s": 0.582, "duration_s": 2.918, "status": 200},
    ],
    "stream": True, "chunks": 118, "e2e_s": 3.5, "ttft_s": 1.1, "tpot_s": 0.02,
    "retry_s": 0.58, "network_s": 0.66, "network_source": "client", "gateway_s": 0.04,
    "gateway_source": "server_timing", "network_client_wait_s": 0.0, "network_connect_s": 0.03,
    "network_dns_s": 0.01, "network_tls_s": 0.04, "decode_s": 2.38, "decode_source": "client",
    "render_s": 0.02, "render_source": "client", "held_after_s": 0.02, "unattributed_s": 0.4,
    "retry_network_s": 0.58, "answered_s": 0.72, "last_content_s": 3.48, "max_gap_s": 0.09,
}  # fmt: skip


# Keys that are no field with a name on the wire. A source belongs to the duration of its name.
_OTHER_KEYS: Final[Mapping[str, str]] = {
    "trace_id": "trace id, 32 hexadecimal digits",
    "span_id": "span id, 16 hexadecimal digits",
    "parent_span_id": "span id of the parent, if there is one",
    "start": "when the request began, Unix time in nanoseconds",
    "service": "the application's `service.name`",
    "finish_reason": "why the model stopped, as the server reported it",
    "server": "host of the server, with its port where given",
    "nested": "whether the time is part of another row's, as of a request in a turn",
    "stream": "whether the response came as a stream",
    "unwatched": "true if consumer time was not observed; absent if it was",
    "e2e_s": "end-to-end latency: start to the end of the stream",
    "ttft_s": "time to first token: start to the first content",
    "ttft_arrival_s": "the least that `ttft_s` would have been if the consumer had read at once",
    "tpot_s": "time per output token after the first",
    "retry_s": "failed attempts and the backoff after them",
    "unattributed_s": "the rest of `e2e_s`, which no stage can be given",
    "inconsistent": "stages whose reported figure did not fit into the latency and was cut",
    "attempt_log": "the HTTP attempts, if there were several or one failed: see the example",
    "attributes": "attributes that the application added, by name",
    "response_headers": "the response headers that are kept, by name in lower case",
    "parts": "tool calls and nested turns, on a turn",
}
_NOT_LISTED: Final = ("browser_", "marked_")


def _row_key_meanings() -> dict[str, str]:
    """Return the meaning of each key of a row's JSON."""
    keys = dict(_OTHER_KEYS)
    for one in (*PLAIN, *STAGE_TIMES, *MARKS, *UNSPLIT, *RAW, *REPORTED, *NETWORK):
        name = one.key or one.field
        keys[f"{name}_s" if one.kind == "seconds" else name] = one.meaning
    sources = (key for key in flat_kinds() if key.endswith("_source"))
    return keys | {key: f"source of `{key.removesuffix('_source')}_s`" for key in sources}


def row_keys() -> str:
    """List the keys of a row's JSON, and print a row as the code reads and writes it."""
    flat = from_dict(_ROW).as_dict()
    lines = ["```json", json.dumps(flat, indent=1), "```", "", "| key | value | meaning |"]
    lines.append("|---|---|---|")
    names = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    keys, kinds = _row_key_meanings(), flat_kinds()
    names_of = {"inconsistent": "list", "attempt_log": "list", "parts": "list"}
    for key, kind in kinds.items():
        if not key.startswith(_NOT_LISTED):
            value = names.get(kind) or names_of.get(key, "object")
            lines.append(f"| `{key}` | {value} | {keys[key]} |")
    return "\n".join(lines)


GENERATORS: Final[Mapping[str, Callable[[], str]]] = {
    "budget": budget,
    "cli": cli,
    "collector-api": collector_api,
    "collector-settings": collector_settings,
    "contact": contact,
    "engine-figures": engine_figures,
    "engine-names": engine_names,
    "engine-signals": engine_signals,
    "gateway-signals": gateway_signals,
    "gpu-signals": gpu_signals,
    "make": targets,
    "metrics": metrics,
    "protocols": protocols,
    "recorded-series": recorded_series,
    "row-keys": row_keys,
}
WHOLE_PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "reference/semconv.md": docs.page,
    **{f"on-call/runbooks/{name}": make for name, make in RUNBOOKS.items()},
}
