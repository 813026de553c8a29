"""Read the settings that name targets: addresses, lists of them, DNS names and pods.

Each with the credentials for it, whose files must be there before anything listens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

from llmtrace.errors import ConfigError
from llmtrace_collector.config.fields import Where, file_there, path, text, token_file
from llmtrace_collector.scrape.access import Access
from llmtrace_collector.scrape.discovery import DnsTargets, KubernetesPods
from llmtrace_collector.scrape.dns_srv import SrvTargets, is_srv
from llmtrace_collector.scrape.fetch import checked
from llmtrace_collector.scrape.target_tls import TlsFiles
from llmtrace_collector.scrape.targets import HttpTargets, Target, parse_groups

_MAX_PORT: Final = 65_535
_CREDENTIALS: Final = ("token_file", "username", "password_file")
_TLS_FILES: Final = ("ca_file", "cert_file", "key_file")


def target(value: Any, where: Where) -> tuple[Target, ...]:
    """Read one target: its address, or `{targets, labels, token_file, ca_file, ...}`."""
    if isinstance(value, str):
        return parse_groups([{"targets": [value]}], where.text)
    if not isinstance(value, Mapping):
        raise where.wrong(f"{value!r} is neither an address nor {{targets: [...], labels: ...}}")
    group = {"targets": value.get("targets"), "labels": value.get("labels")}
    return parse_groups([group], where.text, _access(value, where, set(group)))


def discovery_server(value: Any, where: Where) -> HttpTargets:
    """Read a server that lists targets: its address, or `{url, token_file, ca_file, ...}`."""
    if not isinstance(value, Mapping):
        return HttpTargets(checked(text(value, where), where.text))
    access = _access(value, where, {"url"})
    at = where.at(".url")
    return HttpTargets(checked(text(value.get("url"), at), at.text), access)


def _access(value: Mapping[str, Any], where: Where, others: set[str]) -> Access:
    """Read the credentials for a server; beside them there may be other settings."""
    known = {*others, *_CREDENTIALS, *_TLS_FILES}
    if unknown := set(value) - known:
        raise where.wrong(f"no such setting: {', '.join(map(str, sorted(unknown)))}")
    given = {name: value[name] for name in _CREDENTIALS if value.get(name) is not None}
    if ("username" in given) != ("password_file" in given):
        raise where.wrong("username and password_file go together: give both, or neither")
    if "token_file" in given and "username" in given:
        raise where.wrong("token_file and username: a request bears one of both")
    read: Mapping[str, Callable[[Any, Where], Any]] = {
        "token_file": token_file, "username": text, "password_file": file_there,
    }  # fmt: skip
    return Access(
        **{name: read[name](one, where.at(f".{name}")) for name, one in given.items()},
        tls=_tls_files(value, where),
    )


def dns_name(value: Any, where: Where) -> DnsTargets | SrvTargets:
    """Read `host:port`, whose addresses are targets, or a name of SRV records."""
    if is_srv(said := text(value, where)):
        return SrvTargets(said)
    host, _, port = said.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        raise where.wrong(f"{value!r} is not a name and a port such as engines.llm.svc:8000")
    return DnsTargets(host, int(port))


def pods(value: Any, where: Where) -> KubernetesPods:
    """Read which pods are targets: `{selector, port, namespace, path, api, account}`."""
    if not isinstance(value, Mapping):
        raise where.wrong(f"{value!r} is not {{selector: app=vllm, port: 8000}}")
    known = {one.name for one in fields(KubernetesPods) if one.init}
    if unknown := set(value) - known:
        raise where.wrong(f"no such setting: {', '.join(map(str, sorted(unknown)))}")
    port = value.get("port")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port <= _MAX_PORT:
        raise where.at(".port").wrong(f"{port!r} is not a port such as 8000")
    given: dict[str, Any] = {
        name: text(value[name], where.at(f".{name}"))
        for name in known - {"port", "account"}
        if value.get(name)
    }
    if "selector" not in given:
        raise where.wrong("selector is missing: the labels of the pods, such as app=vllm")
    if "api" in given:
        checked(given["api"], where.at(".api").text)
    if value.get("account") is not None:
        given["account"] = path(value["account"], where.at(".account"))
    return KubernetesPods(port=port, **given)


def _tls_files(value: Mapping[str, Any], where: Where) -> TlsFiles | None:
    """Read the files of a target's connections, and look whether they hold what they must."""
    given = {name: value[name] for name in _TLS_FILES if value.get(name) is not None}
    if not given:
        return None
    if ("cert_file" in given) != ("key_file" in given):
        raise where.wrong("cert_file and key_file go together: give both, or neither")
    there = {name: file_there(one, where.at(f".{name}")) for name, one in given.items()}
    files = TlsFiles(**{name.removesuffix("_file"): one for name, one in there.items()})
    try:
        files.context()
    except ConfigError as error:
        raise where.wrong(str(error)) from error
    return files
