"""A test double of a ClickHouse server: its HTTP protocol, over the embedded engine.

It runs the same engine as a server of that version would, and nothing else of one: no users, no
quotas, no TLS, no replication, no other versions. What passes against it was run on the ClickHouse
engine over HTTP, and never on a ClickHouse server.
"""

from __future__ import annotations

import gzip
import re
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import chdb

# Of a request to a server, not of a statement's settings.
_NOT_SETTINGS = {
    "query", "database", "session_id", "session_timeout", "session_check", "query_id",
    "wait_end_of_query", "default_format", "compress", "decompress", "client_protocol_version",
    "role", "enable_http_compression", "http_headers_progress_interval_ms",
    "send_progress_in_http_headers",
}  # fmt: skip
_INSERT = re.compile(r"\s*INSERT\s+INTO\s+(.+?)\s+FORMAT\s+(\w+)\s*$", re.IGNORECASE | re.DOTALL)
_LEADING = re.compile(rb"\s*INSERT\s+INTO\s+[^\n]+?\s+FORMAT\s+\w+[ \n]", re.IGNORECASE)
_FORMAT = re.compile(r"\s+FORMAT\s+(\w+)\s*$", re.IGNORECASE)
_CODE = re.compile(r"Code: (\d+)")


class _Sessions:
    def __init__(self, folder, *, reads_only=False):
        self._folder = folder
        self._reads_only = reads_only
        self._lock = threading.Lock()
        self._known = {}

    def of(self, name, database):
        with self._lock:
            found = self._known.get((name, database))
            if found is None:
                connection = chdb.connect(str(self._folder))
                if database and database != "default":
                    connection.query(f"USE `{database}`", "Null")
                if self._reads_only:
                    connection.query("SET readonly = 1", "Null")
                found = self._known[name, database] = (connection, threading.Lock())
            return found

    def close(self):
        for connection, _ in self._known.values():
            connection.close()


def _handler(sessions, seen):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            self._answer(b"")

        def do_POST(self):
            if self.headers.get("transfer-encoding", "").lower() == "chunked":
                body = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            self._answer(body)

        def _answer(self, body):
            given = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
            if urlsplit(self.path).path == "/ping":
                self._send(200, b"Ok.\n", {})
                return
            sql = given.get("query")
            if sql is None:
                leading = _LEADING.match(body)
                at = len(body) if leading is None else leading.end()
                sql, body = body[:at].decode(), body[at:]
            seen.append((self.headers, sql[:200]))
            try:
                connection, lock = sessions.of(given.get("session_id", ""), given.get("database"))
            except RuntimeError as error:  # no such database
                self._refuse(error)
                return
            settings = {
                name: value
                for name, value in given.items()
                if name not in _NOT_SETTINGS and not name.startswith("param_")
            }
            params = {name[6:]: text for name, text in given.items() if name.startswith("param_")}
            with lock:
                try:
                    result, form = self._run(connection, sql, body, settings, params)
                except (RuntimeError, ValueError) as error:
                    self._refuse(error)
                else:
                    self._send(200, result, {"X-ClickHouse-Format": form})

        @staticmethod
        def _run(connection, sql, body, settings, params):
            before = {}
            for name in settings:
                [old] = connection.query(
                    f"SELECT value FROM system.settings WHERE name = '{name}'", "TSVRaw"
                ).bytes().decode().splitlines()[:1] or [""]
                before[name] = old
            try:
                for name, value in settings.items():
                    if name != "readonly":
                        connection.query(f"SET {name} = {_quoted(value)}", "Null")
                if (insert := _INSERT.match(sql)) and body:
                    with connection.send_insert(f"INSERT INTO {insert[1]}", insert[2]) as sending:
                        sending.append(body)
                        sending.finish()
                    return b"", insert[2]
                form = _FORMAT.search(sql)
                if settings.get("readonly") == "2" and re.match(
                    r"\s*(INSERT|CREATE|ALTER|DROP|TRUNCATE|DELETE|OPTIMIZE)", sql, re.IGNORECASE
                ):
                    raise RuntimeError("Code: 164. DB::Exception: readonly mode. (READONLY)")
                default = "TabSeparated"
                result = connection.query(sql, default if form is None else form[1], params=params)
                return result.bytes(), default if form is None else form[1]
            finally:
                for name, value in before.items():
                    if name != "readonly":
                        connection.query(f"SET {name} = {_quoted(value)}", "Null")

        def _refuse(self, error):
            code = _CODE.search(str(error))
            head = {"X-ClickHouse-Exception-Code": code[1] if code else "1001"}
            self._send(500, str(error).encode(), head)

        def _send(self, status, body, headers):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _quoted(value):
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


@contextmanager
def serving(folder, *, reads_only=False):
    """Serve the engine over a folder on loopback; yields its URL and what it was sent.

    With `reads_only` to a user whose profile says `readonly = 1`: the engine refuses all else.
    """
    sessions, seen = _Sessions(folder, reads_only=reads_only), []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(sessions, seen))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        sessions.close()
        # The engine leaves a copy of a schema that is sent along in the working directory.
        for copy in Path("__cache__").glob("*.proto"):
            copy.unlink()
        with suppress(OSError):
            Path("__cache__").rmdir()
