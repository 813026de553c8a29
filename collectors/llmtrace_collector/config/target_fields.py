"""Read and write the settings that name targets: addresses, lists of them, DNS names and pods.

Each with its credentials, or those for the targets it finds (`for_targets`), whose files must
exist before anything listens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from llmtrace.core.errors import ConfigError
from llmtrace_collector.config.fields import Where, file_there, one_of, path, text, token_there
from llmtrace_collector.scrape.credentials import NONE_NEEDED, Credentials
from llmtrace_collector.scrape.discovery import DnsTargets, KubernetesPods
from llmtrace_collector.scrape.dns_srv import SrvTargets, is_srv
from llmtrace_collector.scrape.fetch import checked, shown
from llmtrace_collector.scrape.target_tls import TlsFiles
from llmtrace_collector.scrape.targets import FileTargets, HttpTargets, Target, parse_groups

_MAX_PORT: Final = 65_535
_POD_TEXTS: Final = ("selector", "namespace", "path", "api")
_CREDENTIALS: Final = ("token_file", "username", "password_file")
_TLS_FILES: Final = ("ca_file", "cert_file", "key_file")
_SERVER_NAME: Final = "server_name"
_FOUND: Final = "for_targets"
_SCHEME: Final = one_of("http", "https")


def target(value: Any, where: Where) -> tuple[Target, ...]:
    """Read one target: its address, or `{targets, labels, token_file, ca_file, ...}`."""
    if isinstance(value, str):
        return parse_groups([{"targets": [value]}], where.text)
    if not isinstance(value, Mapping):
        raise where.wrong(f"{value!r} is neither an address nor {{targets: [...], labels: ...}}")
    group = {"targets": value.get("targets"), "labels": value.get("labels")}
    return parse_groups([group], where.text, _credentials(value, where, set(group)))


def discovery_server(value: Any, where: Where) -> HttpTargets:
    """Read a server that lists targets: its address, or `{url, token_file, ca_file, ...}`."""
    if not isinstance(value, Mapping):
        return HttpTargets(checked(text(value, where), where.text))
    credentials = _credentials(value, where, {"url", _FOUND})
    at = where.at(".url")
    url = checked(text(value.get("url"), at), at.text)
    return HttpTargets(url, credentials, _for_targets(value, where))


def target_list(value: Any, where: Where) -> FileTargets:
    """Read a file that lists targets: its path, or `{file, for_targets}`."""
    if not isinstance(value, Mapping):
        return FileTargets(path(value, where))
    _known(value, where, {"file", _FOUND})
    return FileTargets(path(value.get("file"), where.at(".file")), _for_targets(value, where))


def _credentials(value: Mapping[str, Any], where: Where, others: set[str]) -> Credentials:
    """Read the credentials for a server, from among these other settings."""
    _known(value, where, {*others, *_CREDENTIALS, *_TLS_FILES, _SERVER_NAME})
    given = {name: value[name] for name in _CREDENTIALS if value.get(name) is not None}
    if ("username" in given) != ("password_file" in given):
        raise where.wrong("username and password_file go together: give both, or neither")
    if "token_file" in given and "username" in given:
        raise where.wrong("token_file and username: a request can send only one of them")
    read: Mapping[str, Callable[[Any, Where], Any]] = {
        "token_file": token_there, "username": text, "password_file": file_there,
    }  # fmt: skip
    return Credentials(
        **{name: read[name](one, where.at(f".{name}")) for name, one in given.items()},
        tls=_tls_files(value, where),
    )


def _for_targets(value: Mapping[str, Any], where: Where) -> Credentials:
    """Read the credentials for the targets that a source finds."""
    at, given = where.at(f".{_FOUND}"), value.get(_FOUND)
    if given is None:
        return NONE_NEEDED
    if not isinstance(given, Mapping):
        raise at.wrong(f"{given!r} is not {{token_file: ..., ca_file: ...}}, as of a target")
    return _credentials(given, at, set())


def _scheme_and_credentials(value: Mapping[str, Any], where: Where) -> dict[str, Any]:
    """Read the scheme and the credentials for targets that are found by name or label."""
    scheme = _SCHEME(value.get("scheme") or "http", where.at(".scheme"))
    credentials = _for_targets(value, where)
    if credentials.tls is not None and scheme != "https":
        raise where.wrong(f"{_FOUND} has settings of TLS: say `scheme: https` beside it")
    return {"scheme": scheme, _FOUND: credentials}


def _known(value: Mapping[str, Any], where: Where, names: Collection[str]) -> None:
    if unknown := set(value) - set(names):
        raise where.wrong(f"no such setting: {', '.join(map(str, sorted(unknown)))}")


def dns_name(value: Any, where: Where) -> DnsTargets | SrvTargets:
    """Read `host:port`, whose addresses are targets, or a name of SRV records.

    Or `{name, scheme, for_targets}` with either of them as the name.
    """
    more: dict[str, Any] = {}
    if isinstance(value, Mapping):
        _known(value, where, {"name", "scheme", _FOUND})
        more = _scheme_and_credentials(value, where)
        value, where = value.get("name"), where.at(".name")
    if is_srv(said := text(value, where)):
        return SrvTargets(said, **more)
    host, _, port = said.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        raise where.wrong(f"{value!r} is not a name and a port such as engines.llm.svc:8000")
    return DnsTargets(host, int(port), **more)


def pods(value: Any, where: Where) -> KubernetesPods:
    """Read which pods are targets: `{selector, port, namespace, path, api, account, ...}`."""
    if not isinstance(value, Mapping):
        raise where.wrong(f"{value!r} is not {{selector: app=vllm, port: 8000}}")
    _known(value, where, {"port", "account", "scheme", _FOUND, *_POD_TEXTS})
    port = value.get("port")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port <= _MAX_PORT:
        raise where.at(".port").wrong(f"{port!r} is not a port such as 8000")
    given: dict[str, Any] = {
        name: text(value[name], where.at(f".{name}")) for name in _POD_TEXTS if value.get(name)
    }
    if "selector" not in given:
        raise where.wrong("selector is missing: the labels of the pods, such as app=vllm")
    if "api" in given:
        checked(given["api"], where.at(".api").text)
    if value.get("account") is not None:
        given["account"] = path(value["account"], where.at(".account"))
    return KubernetesPods(port=port, **given, **_scheme_and_credentials(value, where))


def written(value: Any) -> Any:
    """Return a target, or a source of targets, as it is written in a configuration file."""
    if isinstance(value, Target):
        plain = {"targets": [shown(value.url)], "labels": dict(value.labels)}
        return plain | value.credentials.settings()
    found = {_FOUND: value.for_targets.settings()} if value.for_targets != NONE_NEEDED else {}
    if isinstance(value, HttpTargets):
        return {"url": shown(value.url)} | value.credentials.settings() | found
    if isinstance(value, FileTargets):
        return {"file": str(value.path)} | found if found else str(value.path)
    if value.scheme != "http":
        found = {"scheme": value.scheme} | found
    if isinstance(value, KubernetesPods):
        named = {name: getattr(value, name) for name in _POD_TEXTS if getattr(value, name)}
        return {**named, "port": value.port, "account": str(value.account), **found}
    name = value.name.removeprefix("dns ")
    return {"name": name} | found if found else name


def _tls_files(value: Mapping[str, Any], where: Where) -> TlsFiles | None:
    """Read the TLS files of a target's connections, and check their contents."""
    given = {name: value[name] for name in _TLS_FILES if value.get(name) is not None}
    named = value.get(_SERVER_NAME)
    if not given and named is None:
        return None
    if ("cert_file" in given) != ("key_file" in given):
        raise where.wrong("cert_file and key_file go together: give both, or neither")
    there = {name: file_there(one, where.at(f".{name}")) for name, one in given.items()}
    files = TlsFiles(
        **{name.removesuffix("_file"): one for name, one in there.items()},
        server_name="" if named is None else text(named, where.at(f".{_SERVER_NAME}")),
    )
    try:
        files.context()
    except ConfigError as error:
        raise where.wrong(str(error)) from error
    return files
