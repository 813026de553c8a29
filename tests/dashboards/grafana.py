"""A fake of Grafana's API that keeps what it is given and rejects what Grafana would reject.

Paths, bodies and answers are those of Grafana's API document for what the importer calls: folders,
dashboards, data sources by uid, groups of alert rules. Bodies are checked against schemas with no
room for more; dashboards get an id and a version, as there.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import jsonschema

TOKEN: Final = "glsa_secret-of-the-tests_1"


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


_TEXT: Final = {"type": "string", "minLength": 1}
_WORDS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
_UID: Final = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,40}$"}
FOLDER: Final = _object({"title": _TEXT}, uid=_UID, parentUid=_UID, description={"type": "string"})
SAVE: Final = _object(
    {
        "dashboard": {
            "type": "object",
            "required": ["title", "panels", "schemaVersion"],
            "properties": {
                "uid": _UID,
                "title": _TEXT,
                "id": {"type": ["integer", "null"]},
                "version": {"type": "integer"},
                "schemaVersion": {"const": 42},
            },
        }
    },
    folderUid=_UID,
    message={"type": "string"},
    overwrite={"type": "boolean"},
)
SOURCE: Final = _object(
    {"name": _TEXT, "type": _TEXT, "access": {"enum": ["proxy", "direct"]}},
    uid=_UID, url=_TEXT, jsonData={"type": "object"}, secureJsonData={"type": "object"},
    id={"type": "integer"}, version={"type": "integer"}, isDefault={"type": "boolean"},
    basicAuth={"type": "boolean"}, basicAuthUser={"type": "string"}, orgId={"type": "integer"},
    readOnly={"type": "boolean"}, typeName={"type": "string"},
)  # fmt: skip
RULE: Final = _object(
    {
        "title": _TEXT,
        "condition": _TEXT,
        "data": {
            "type": "array",
            "minItems": 1,
            "items": _object(
                {"refId": _TEXT, "datasourceUid": _TEXT, "model": {"type": "object"}},
                queryType={"type": "string"},
                relativeTimeRange=_object(
                    {"from": {"type": "integer"}, "to": {"type": "integer"}}
                ),
            ),
        },
        "noDataState": {"enum": ["Alerting", "NoData", "OK"]},
        "execErrState": {"enum": ["OK", "Alerting", "Error"]},
        "for": {"type": "string", "pattern": r"^\d+(s|m|h|d)$"},
        "folderUID": _UID,
        "ruleGroup": _TEXT,
        "orgID": {"type": "integer"},
    },
    uid=_UID, labels=_WORDS, annotations=_WORDS, isPaused={"type": "boolean"},
)  # fmt: skip
GROUP: Final = _object(
    {
        "title": _TEXT,
        "folderUid": _UID,
        "interval": {"type": "integer", "minimum": 10},
        "rules": {"type": "array", "items": RULE},
    }
)


class RejectedError(Exception):
    """What Grafana answers when it does not do what it is asked."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Grafana:
    """What one Grafana has.

    Attributes:
        calls: method and path of each request that came, in order.
        changes: those of them that were no GET.
        refuse: answers these requests, by method and the beginning of the path, so.
        provisioned: uids of the dashboards that come from files there.
    """

    def __init__(self) -> None:
        self.url = ""
        self.folders: dict[str, dict[str, Any]] = {}
        self.dashboards: dict[str, dict[str, Any]] = {}
        self.sources: dict[str, dict[str, Any]] = {}
        self.groups: dict[tuple[str, str], dict[str, Any]] = {}
        self.calls: list[str] = []
        self.refuse: dict[str, tuple[int, str]] = {}
        self.provisioned: set[str] = set()
        self.before_save = lambda: None

    @property
    def changes(self) -> list[str]:
        """Requests that change something."""
        return [call for call in self.calls if not call.startswith("GET ")]

    def answer(self, method: str, path: str, body: Any) -> Any:
        """Do what is asked, and return the answer."""
        self.calls.append(f"{method} {path}")
        for asked, (status, message) in self.refuse.items():
            if f"{method} {path}".startswith(asked):
                raise RejectedError(status, message)
        for pattern, handle in (
            (r"GET /api/folders/([\w-]+)", lambda uid: _have(self.folders, uid, "folder")),
            (r"POST /api/folders", lambda: self._make_folder(_checked(body, FOLDER))),
            (r"GET /api/dashboards/uid/([\w-]+)", self._dashboard),
            (r"POST /api/dashboards/db", lambda: self._save(_checked(body, SAVE))),
            (
                r"GET /api/datasources/uid/([\w-]+)",
                lambda uid: _have(self.sources, uid, "Data source"),
            ),
            (r"POST /api/datasources", lambda: self._source(_checked(body, SOURCE))),
            (
                r"PUT /api/datasources/uid/([\w-]+)",
                lambda uid: self._source(_checked(body, SOURCE), uid),
            ),
            (
                r"GET /api/v1/provisioning/folder/([\w-]+)/rule-groups/([\w-]+)",
                lambda folder, group: _have(self.groups, (folder, group), "rule group"),
            ),
            (
                r"PUT /api/v1/provisioning/folder/([\w-]+)/rule-groups/([\w-]+)",
                lambda folder, group: self._rules(folder, group, _checked(body, GROUP)),
            ),
        ):
            if match := re.fullmatch(pattern, f"{method} {path}"):
                return handle(*match.groups())
        raise RejectedError(404, "Not found")

    def _make_folder(self, folder: dict[str, Any]) -> dict[str, Any]:
        uid = folder["uid"]
        if uid in self.folders:
            raise RejectedError(412, "a folder with that uid already exists")
        self.folders[uid] = {"id": len(self.folders) + 1, "uid": uid, "title": folder["title"]}
        return self.folders[uid]

    def _dashboard(self, uid: str) -> dict[str, Any]:
        found = _have(self.dashboards, uid, "Dashboard")
        meta = {"folderUid": found["folder"], "version": found["dashboard"]["version"]}
        return {
            "meta": {**meta, "provisioned": uid in self.provisioned},
            "dashboard": found["dashboard"],
        }

    def _save(self, command: dict[str, Any]) -> dict[str, Any]:
        self.before_save()
        dashboard = command["dashboard"]
        uid, folder = dashboard["uid"], command["folderUid"]
        if folder not in self.folders:
            raise RejectedError(400, "folder not found")
        if uid in self.provisioned:
            raise RejectedError(400, "Cannot save provisioned dashboard")
        there = self.dashboards.get(uid)
        version = 0 if there is None else there["dashboard"]["version"]
        forced = there is None or command.get("overwrite")
        if not forced and dashboard.get("version") != version:
            raise RejectedError(412, "The dashboard has been changed by someone else")
        number = len(self.dashboards) + 1 if there is None else there["dashboard"]["id"]
        # As Grafana does, it adds what it knows better.
        saved = {**dashboard, "id": number, "version": version + 1}
        for panel in saved["panels"]:
            panel.setdefault("pluginVersion", "13.2.2")
        self.dashboards[uid] = {"dashboard": saved, "folder": folder}
        return {"uid": uid, "status": "success", "version": version + 1}

    def _source(self, source: dict[str, Any], uid: str | None = None) -> dict[str, Any]:
        if uid is not None:
            _have(self.sources, uid, "Data source")
            kept = self.sources[uid]
            if kept.get("readOnly"):
                raise RejectedError(403, "Cannot update read-only data source")
            if source.get("version", kept["version"]) != kept["version"]:
                raise RejectedError(409, "Datasource has already been updated by someone else")
        names = {one["name"] for other, one in self.sources.items() if other != uid}
        if source["name"] in names:
            raise RejectedError(409, "data source with the same name already exists")
        given = uid or source["uid"]
        version = self.sources.get(given, {"version": 0})["version"] + 1
        stored = {"id": len(self.sources) + 1, "orgId": 1, "isDefault": False, "basicAuth": False}
        self.sources[given] = {**stored, **source, "uid": given, "version": version}
        return {"datasource": self.sources[given]}

    def _rules(self, folder: str, group: str, body: dict[str, Any]) -> dict[str, Any]:
        _have(self.folders, folder, "folder")
        uids = [rule["uid"] for rule in body["rules"]]
        titles = [rule["title"] for rule in body["rules"]]
        if len(set(uids)) < len(uids) or len(set(titles)) < len(titles):
            raise RejectedError(400, "rules of one folder must have titles and uids of their own")
        for rule in body["rules"]:
            if rule["condition"] not in {one["refId"] for one in rule["data"]}:
                raise RejectedError(400, "condition does not exist")
        # A uid is of the whole organisation: a rule that is elsewhere moves.
        for other in self.groups.values():
            other["rules"] = [rule for rule in other["rules"] if rule["uid"] not in uids]
        added = [{**rule, "id": n, "provenance": ""} for n, rule in enumerate(body["rules"])]
        self.groups[folder, group] = {**body, "rules": added}
        return self.groups[folder, group]


def _have(things: dict[Any, Any], key: Any, what: str) -> Any:
    if key not in things:
        raise RejectedError(404, f"{what} not found")
    return things[key]


def _checked(body: Any, schema: dict[str, Any]) -> Any:
    try:
        jsonschema.validate(body, schema)
    except jsonschema.ValidationError as error:
        raise RejectedError(
            400, f"bad request data: {error.json_path}: {error.message}"
        ) from error
    return json.loads(json.dumps(body))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # an answer in one piece
    grafana: Grafana
    prefix = ""

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        path = self.path.partition("?")[0]
        if not path.startswith(f"{self.prefix}/api/"):
            return self._say(404, b"<html>no such page</html>", "text/html")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.grafana.calls.append(f"{self.command} {path}")
            return self._json(401, {"message": "Invalid API key"})
        try:
            body = json.loads(raw) if raw else None
            found = self.grafana.answer(self.command, path.removeprefix(self.prefix), body)
        except RejectedError as error:
            return self._json(error.status, {"message": str(error)})
        return self._json(200, found)

    def _json(self, status: int, content: Any) -> None:
        self._say(status, json.dumps(content).encode(), "application/json")

    def _say(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = _handle  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(
    grafana: Grafana, *, prefix: str = "", certificate: tuple[Path, Path] | None = None
) -> Iterator[Grafana]:
    """Serve it on loopback, below a path or by TLS if asked for."""
    handler = type("Handler", (_Handler,), {"grafana": grafana, "prefix": prefix})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = False
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        scheme = "https"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    grafana.url = f"{scheme}://127.0.0.1:{server.server_port}{prefix}"
    try:
        yield grafana
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
