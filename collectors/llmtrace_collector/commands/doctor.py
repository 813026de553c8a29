"""Report which signals an engine or gateway has, which are missing, and which settings add them.

Examines a server from outside: its page, its version, and (only with `--ask`) one request of one
token. `examine` returns the result; `show` prints it as a table.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit, urlunsplit

import aiohttp
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmtrace.core.errors import DataError, SourceError
from llmtrace.core.sanitize import printable
from llmtrace.display.summary_tables import console_for
from llmtrace_collector.scrape.credentials import Credentials
from llmtrace_collector.scrape.fetch import (
    FetchError,
    checked,
    fetch,
    how_broken,
    make_session,
    read_json,
    shown,
)
from llmtrace_collector.signals.definitions import SIGNALS, Merge
from llmtrace_collector.signals.exposition_parser import Limits
from llmtrace_collector.signals.normalise import Distribution, Measured, Normaliser, Reading
from llmtrace_collector.signals.profile import (
    Advice,
    Profile,
    builtin_profiles,
    load_profiles,
    parse_version,
    show_version,
)

State = Literal["reported", "missing", "not here"]
# `needed`: known not to be set; `?`: cannot be seen from outside, or was not checked.
Setting = Literal["needed", "set", "not here", "?"]

_ESSENTIAL: Final = frozenset(
    {"running", "waiting", "kv_usage", "queue", "prefill", "decode", "ttft", "e2e"}
)
_SMALL: Final = 1 << 20
_BASES: Final = {"", "/", "/v1", "/v1/"}
_RESPONSES: Final = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalFound:
    """One signal: whether it is reported, its value now, and a note."""

    signal: str
    state: State
    metric: str
    value: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingFound:
    """One setting: whether it is needed, and for what."""

    setting: str
    state: Setting
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a server is and reports.

    Attributes:
        url: of its page.
        engines: the titles of the profiles that recognise the page.
        version: as the server reports it, or bounds from the names on its page.
        replicas: the engines on the page, with their models.
        not_asked: why the request of `--ask` failed; `None` = it did not, or was not sent.
    """

    url: str
    engines: tuple[str, ...]
    version: str
    replicas: tuple[str, ...]
    signals: tuple[SignalFound, ...]
    settings: tuple[SettingFound, ...]
    not_asked: str | None = None

    @property
    def lacking(self) -> tuple[str, ...]:
        """The missing signals without which the stages of requests are not known."""
        return tuple(
            one.signal
            for one in self.signals
            if one.state == "missing" and one.signal in _ESSENTIAL
        )


def run(
    url: str,
    *,
    token_file: Path | None,
    timeout_s: float,
    ask: bool,
    profiles: Path | None,
    as_json: bool,
) -> None:
    """Examine a server and print what was found: the command `llmtrace doctor`.

    Raises:
        SourceError: it cannot be read or is not recognised, or lacks signals or responses.
        ConfigError: the address or a profile is invalid.
    """
    if (found := asyncio.run(_collector(url, timeout_s))) is not None:
        _show_collector(url, found, as_json=as_json)
        return
    known = builtin_profiles() if profiles is None else load_profiles(profiles)
    report = asyncio.run(
        examine(url, token_file=token_file, timeout_s=timeout_s, ask=ask, profiles=known)
    )
    console = console_for(sys.stdout)
    if as_json:
        console.out(json.dumps(asdict(report), indent=2), highlight=False)
    else:
        show(report, console)
    lacks = f"{report.url} does not report {', '.join(report.lacking)}" * bool(report.lacking)
    if wrong := "; ".join(filter(None, [lacks, report.not_asked])):
        raise SourceError(wrong)


async def examine(
    url: str,
    *,
    token_file: Path | None = None,
    timeout_s: float = 10.0,
    ask: bool = False,
    profiles: Sequence[Profile] | None = None,
) -> Report:
    """Examine a server.

    Args:
        url: of the server, of its `/v1`, or of its page.
        token_file: holds the token it requires.
        timeout_s: for each response.
        ask: whether to have the engine generate one token, to see what its responses carry.
        profiles: what the server may be; default: the built-in ones.

    Raises:
        SourceError: it cannot be read, or is not recognised.
        ConfigError: the address is invalid.
    """
    address = checked(url, "URL")
    authorization = Credentials(token_file=token_file).authorization(shown(address))
    server = _Server(address, authorization, timeout_s)
    async with make_session() as session:
        page, normaliser, reading = await _page(session, server, profiles or builtin_profiles())
        found = normaliser.profiles
        version = await _version(session, server, found)
        answer: _Asked
        try:
            answer = await _ask(session, server) if ask else None
        except SourceError as error:  # the page is reported nevertheless
            answer = error
    bound = _at_least(reading) if version is None else version
    return Report(
        url=shown(page),
        engines=tuple(profile.title for profile in found),
        version=bound,
        replicas=_replicas(reading),
        signals=tuple(_signals(found, reading)),
        settings=tuple(_settings(found, reading, version, answer)),
        not_asked=str(answer) if isinstance(answer, SourceError) else None,
    )


async def _collector(url: str, timeout_s: float) -> Mapping[str, Any] | None:
    """Return the status of an llmtrace collector; `None` = it is not one."""
    parts = urlsplit(checked(url, "URL"))
    if parts.path not in _BASES | {"/metrics", "/readyz"}:
        return None
    found = []
    async with make_session() as session:
        for path in ("/healthz", "/readyz"):
            page = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
            try:
                text = await fetch(
                    session, page, timeout_s=timeout_s, size=_SMALL, statuses=(200, 503)
                )
                found.append(read_json(text, page))
            except FetchError:
                return None
    alive, ready = found
    is_ours = alive == {"status": "alive"} and isinstance(ready, Mapping) and "status" in ready
    return ready if is_ours else None


def _show_collector(url: str, found: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the status of a collector.

    Raises:
        SourceError: requests are in quarantine, are rejected now, or do not become rows now.
    """
    count, console = found.get("quarantined_requests", 0), Console()
    if as_json:
        console.out(json.dumps({"url": shown(url), **found}, indent=2), highlight=False)
    else:
        status = ": ".join(
            printable(str(found[name])) for name in ("status", "reason") if name in found
        )
        console.out(f"{shown(url)}: llmtrace collector, {status}", highlight=False)
        if words := found.get("clock"):
            console.out(f"  {printable(str(words))}", highlight=False)
    if count:
        raise SourceError(
            f"{count} {'request is' if count == 1 else 'requests are'} in quarantine: the store "
            "did not take them; `llmtrace quarantine` says why, and replays them"
        )
    if "reason" in found:
        raise SourceError("the collector takes no requests now")
    if words := found.get("problem"):
        raise SourceError(printable(str(words)))


@dataclass(frozen=True, slots=True)
class _Server:
    url: str
    authorization: str | None
    timeout_s: float

    @property
    def base(self) -> str:
        """The address of the server, without a path."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc, "", "", ""))

    async def get(self, session: aiohttp.ClientSession, url: str, size: int) -> str:
        return await fetch(
            session, url, timeout_s=self.timeout_s, size=size, authorization=self.authorization
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one response of the engine carried."""

    inband: bool
    request_id: bool


_Asked = _Answer | SourceError | None  # `None` = without `--ask`


async def _page(
    session: aiohttp.ClientSession, server: _Server, profiles: Sequence[Profile]
) -> tuple[str, Normaliser, Reading]:
    url = server.url
    if urlsplit(url).path in _BASES:
        paths = dict.fromkeys(["/metrics", *(profile.path for profile in profiles)])
        pages = [server.base + path for path in paths]
    else:
        pages = [url]
    problems: list[str] = []
    for page in pages:
        try:
            text = await server.get(session, page, Limits().size)
            normaliser = Normaliser(profiles)
            reading = normaliser.read(text)
        except FetchError as error:
            problems.append(str(error))
            if error.reason not in {"http", "page", "encoded"}:
                raise  # another path would not help
        except DataError as error:
            problems.append(f"{shown(page)}: {error}")
        else:
            if reading.profiles:
                return page, normaliser, reading
            problems.append(
                f"{shown(page)} is not a page of any known engine, gateway or exporter"
            )
    known = ", ".join(profile.title for profile in profiles)
    raise SourceError(
        f"{'; '.join(problems)}. Known are {known}. Some serve no page unless enabled: "
        f"SGLang --enable-metrics, llama.cpp --metrics, LiteLLM callbacks: [prometheus]"
    )


async def _version(
    session: aiohttp.ClientSession, server: _Server, profiles: Sequence[Profile]
) -> str | None:
    for profile in profiles:
        if profile.version is not None:
            path, key = profile.version
            try:
                text = await server.get(session, server.base + path, _SMALL)
                version = _version_in(read_json(text, server.base + path), key)
            except FetchError:
                continue  # old versions do not report it
            if version is not None:
                return version
    return None


def _version_in(content: object, key: str) -> str | None:
    value = content.get(key) if isinstance(content, Mapping) else None
    return value[:64] if isinstance(value, str) and value else None


async def _ask(session: aiohttp.ClientSession, server: _Server) -> _Answer:
    """Have the engine generate one token, and examine the response."""
    models = read_json(await server.get(session, f"{server.base}/v1/models", _SMALL), server.base)
    try:
        model = models["data"][0]["id"]
    except (KeyError, IndexError, TypeError):
        raise SourceError(f"{shown(server.base)}/v1/models lists no model to ask") from None
    sent = f"llmtrace-doctor-{secrets.token_hex(8)}"
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"X-Request-Id": sent}
    if server.authorization:
        headers["Authorization"] = server.authorization
    url = f"{server.base}/v1/chat/completions"
    try:
        async with (
            asyncio.timeout(server.timeout_s),
            session.post(url, json=body, headers=headers, allow_redirects=False) as answer,
        ):
            if answer.status != 200:  # noqa: PLR2004
                raise SourceError(
                    f"{shown(url)} answered {answer.status} to a request of one token"
                )
            text = bytearray()
            async for chunk in answer.content.iter_any():
                text += chunk
                if len(text) > _RESPONSES:
                    break
            return _Answer(
                inband=_carries_figures(text.decode("utf-8", errors="replace")),
                request_id=answer.headers.get("x-request-id") == sent,
            )
    except TimeoutError:
        raise SourceError(
            f"{shown(url)} did not answer within {server.timeout_s:g} s (--timeout)"
        ) from None
    except (aiohttp.ClientError, OSError) as error:
        raise SourceError(f"{shown(url)}: {how_broken(error)}") from error


def _carries_figures(text: str) -> bool:
    """Return whether an event of a stream carries the engine's own figures."""
    for line in text.splitlines():
        if line.startswith("data:") and "queue_time_ms" in line:
            try:
                event = json.loads(line[5:])
            except (ValueError, RecursionError):
                continue
            figures = event.get("metrics") if isinstance(event, Mapping) else None
            if isinstance(figures, Mapping) and figures.get("queue_time_ms") is not None:
                return True
    return False


def _at_least(reading: Reading) -> str:
    """Bound a version by the names on its page."""
    if reading.oldest is None:
        return "not reported"
    if reading.newest is not None:
        return f"{show_version(reading.oldest)} to {show_version(reading.newest)}, by its names"
    return f"{show_version(reading.oldest)} or later, by its names"


def _replicas(reading: Reading) -> tuple[str, ...]:
    found = {}
    for one in reading.measured:
        labels = dict(one.labels)
        words = [
            f"{name} {labels[name]}" for name in ("model", "replica", "gpu") if name in labels
        ]
        if "replica" in labels or "gpu" in labels:
            found[printable(", ".join(words))] = True
    return tuple(found)


def _signals(profiles: Sequence[Profile], reading: Reading) -> list[SignalFound]:
    measured: dict[str, list[Measured]] = {}
    for one in reading.measured:
        measured.setdefault(one.signal.name, []).append(one)
    notes = {
        name: family.note
        for profile in profiles
        for name, families in profile.signals.items()
        for family in families[:1]
        if family.note
    }
    found = [
        SignalFound(
            signal=name, state="reported", metric=SIGNALS[name].metric,
            value=_value(series), note=notes.get(name, ""),
        )
        for name, series in measured.items()
    ]  # fmt: skip
    found += [
        SignalFound(
            signal=gone.signal,
            state="missing" if gone.why is None else "not here",
            metric=SIGNALS[gone.signal].metric,
            value="",
            note=gone.why or f"no {', '.join(gone.names) or 'value (NaN, or cut)'} on the page",
        )
        for gone in (*reading.missing, *reading.no_value)
        if gone.signal not in measured
    ]
    order = {name: place for place, name in enumerate(SIGNALS)}
    return sorted(found, key=lambda one: order[one.signal])


def _value(series: Sequence[Measured]) -> str:
    """Show the value of a signal, merged over its series."""
    counted = [one.value for one in series if isinstance(one.value, Distribution)]
    if counted:
        number = sum(one.count for one in counted)
        mean = f"{sum(one.sum for one in counted) / number:.4g}" if number else "-"
        unit = " s" if series[0].signal.metric.endswith("_seconds") else ""
        several = f" ({len(counted)} series)" if len(counted) > 1 else ""
        return f"mean {mean}{unit}, n {number:g}{several}" if number else "n 0"
    signal = series[0].signal
    values: dict[str, list[float]] = {}
    for one in series:
        if isinstance(one.value, float):
            values.setdefault(dict(one.labels).get(signal.label or "", ""), []).append(one.value)
    parts = [f"{printable(label)} {_merged(signal.merge, v)}" for label, v in values.items()]
    return ", ".join(parts[:4]).strip() + (", ..." if len(parts) > 4 else "")  # noqa: PLR2004


def _merged(merge: Merge, values: Sequence[float]) -> str:
    total = max(values) if merge == "max" else sum(values)
    several = f" ({merge} of {len(values)})" if len(values) > 1 else ""
    return f"{total / len(values) if merge == 'mean' else total:g}{several}"


def _settings(
    profiles: Sequence[Profile], reading: Reading, version: str | None, answer: _Asked
) -> list[SettingFound]:
    found = []
    for profile in profiles:
        for advice in profile.advice:
            state, words = _setting(advice, reading, answer)
            if state == "set" and advice.probe == "missing":
                continue  # the signal is there: nothing to advise
            if (too_old := _too_old(advice, version)) and state != "set":
                state, words = "not here", ""  # this version does not have the setting
            late = f"from {show_version(advice.since)} on" if too_old is not False else ""
            note = "; ".join(filter(None, [advice.why, words, late]))
            found.append(SettingFound(setting=advice.set, state=state, note=note))
    return found


def _setting(advice: Advice, reading: Reading, answer: _Asked) -> tuple[Setting, str]:
    there = [one for one in reading.measured if one.signal.name == advice.signal]
    if advice.probe == "missing":
        return ("set", "") if there else ("needed", f"{advice.signal} is not reported")
    if advice.probe == "buckets":
        firsts = [one.value.bounds[0] for one in there if isinstance(one.value, Distribution)
                  and one.value.bounds]  # fmt: skip
        if not firsts:
            return "?", f"{advice.signal} has no buckets"
        wide = max(firsts) > (advice.finest_s or 0)
        return ("needed" if wide else "set"), f"the first bucket ends at {max(firsts):g} s"
    if advice.probe == "unseen":
        return "?", "cannot be seen from here"
    if not isinstance(answer, _Answer):
        return "?", "the request failed" if answer else "--ask finds out"
    seen = answer.inband if advice.probe == "inband" else answer.request_id
    return ("set", "") if seen else ("needed", "an answer did not carry it")


def _too_old(advice: Advice, version: str | None) -> bool | None:
    """Return whether a version is older than the advice requires; `None` = not known."""
    if advice.since is None:
        return False
    try:
        return None if version is None else parse_version(version) < advice.since
    except ValueError:
        return None


def show(report: Report, console: Console) -> None:
    """Print a report as a table, one line for each finding."""
    table = Table(title_justify="left", title=_title(report), box=SIMPLE_HEAD, pad_edge=False)
    for column in ("signal or setting", "is", "now", "note"):
        table.add_column(column, overflow="fold")
    for one in report.signals:
        table.add_row(Text(one.signal), one.state, Text(one.value), Text(one.note))
    table.add_section()
    for setting in report.settings:
        table.add_row(Text(setting.setting), setting.state, "", Text(setting.note))
    console.print(table)


def _title(report: Report) -> Text:
    who = " and ".join(report.engines)
    lines = [f"{report.url}: {who}, version {printable(report.version)}"]
    if report.replicas:
        lines.append(f"{len(report.replicas)} on this page: {'; '.join(report.replicas[:8])}")
    return Text("\n".join(lines))
