"""A node of a cluster, for tests: the embedded engine, and what other nodes ask it.

    python -m tests.collector.store.shard_node FOLDER CONFIG PORT

Each node is a process with the printed schema. Asked by another it answers in ClickHouse's own
protocol between servers, which the engine speaks as a client; what a node sends along (`GLOBAL
IN`) is there as a temporary table. Nothing else of a cluster is here: no replicas, no Keeper (the
schema's `ON CLUSTER` and `Replicated` are left out), no inserts from other nodes, of aggregates
`max` alone, and a view that is refreshed is run once. What a test has to say comes as lines of
JSON, and so do the answers.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import sys
import threading
from pathlib import Path

import chdb

from llmtrace_collector.store import ddl, otlp_to_spans, rows_sql
from llmtrace_collector.store.clickhouse_embedded import Embedded
from llmtrace_collector.store.tables import Keep

CLUSTER, DATABASE = "prod", "fleet"
# Old enough that queries and blocks have few fields, new enough for the settings' present form.
_REVISION = 54430
_HELLO, _QUERY, _DATA, _PING, _STATUS, _SCALAR = 0, 1, 2, 4, 5, 7
_FOUND, _EXCEPTION, _PONG, _END, _STATUS_IS = 1, 2, 4, 5, 9
_STATES, _COMPLETE = 1, 2  # stages of a query: states of aggregates, or the whole result
_MAX = re.compile(r"^SELECT max\(`__table1`\.`(\w+)`\) AS `max\(\w+\)` FROM")
_TCP = 1
_FIXED = {"UInt8": 1, "UInt32": 4, "UInt64": 8, "DateTime64(6, 'UTC')": 8,
          "Nullable(UInt64)": 9, "Nullable(DateTime64(6, 'UTC'))": 9}  # fmt: skip
# A value that is sent along is a table here, as all that is.
_SCALAR_OF = re.compile(r"__getScalar\('(\w+)'\)")
_BLOCK = struct.pack("<BBBiB", 1, 0, 2, -1, 0)  # its fields: no overflow, no bucket


def config(ports, own):
    """Return an engine's configuration: a shard a port, of which one is this node itself."""
    shards = "".join(
        "<shard><replica><host>127.0.0.1</host><compression>false</compression>"
        f"<port>{port}</port></replica></shard>"
        for port in ports
    )
    return (
        f"<clickhouse><tcp_port>{own}</tcp_port><remote_servers><{CLUSTER}>{shards}</{CLUSTER}>"
        "</remote_servers></clickhouse>"
    )


def alone(statement):
    """Return a statement of the printed schema without what only Keeper can do."""
    statement = statement.replace(f" ON CLUSTER '{CLUSTER}'", "")
    statement = re.sub(
        r"Replicated(\w*)\('[^']*', '[^']*'(?:, )?(.*?)\)\n", r"\1(\2)\n", statement
    )
    # Other nodes cannot insert here.
    statement = statement.replace("TO otel_traces AS", "TO otel_traces_local AS")
    # A view that is refreshed once is a table, or what it appends.
    statement = re.sub(
        r"^CREATE MATERIALIZED VIEW IF NOT EXISTS (\w+)\nREFRESH EVERY .* ENGINE = (.*) AS\n",
        r"CREATE TABLE \1 ENGINE = \2 AS\n", statement,
    )  # fmt: skip
    columns = ", ".join((*rows_sql.COLUMNS, "version_ns"))
    return re.sub(
        r"^CREATE MATERIALIZED VIEW .*\nREFRESH EVERY .* APPEND TO (\w+) AS\n",
        rf"INSERT INTO \1 ({columns})\n", statement,
    )  # fmt: skip


def _varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


def _text(text):
    return _varint(len(text.encode())) + text.encode()


class _Asked:
    """What another node asks on one connection."""

    def __init__(self, connection, engine):
        self._connection = connection
        self._read = connection.makefile("rb").read
        self._engine = engine

    def answer(self):
        while head := self._read(1):
            packet = head[0]
            if packet == _HELLO:
                self._texts(1), self._varints(3), self._texts(3)
                self._send(_HELLO, _text("node"), bytes((26, 9)), _varint(_REVISION), _text("UTC"),
                           _text("node"), _varint(1))  # fmt: skip
            elif packet == _PING:
                self._send(_PONG)
            elif packet == _STATUS:
                named = [self._texts(2) for _ in range(self._varints(1)[0])]
                statuses = [_text(base) + _text(table) + b"\0" for base, table in named]
                self._send(_STATUS_IS, _varint(len(named)), *statuses)
            elif packet == _QUERY:
                self._query()
            else:
                raise AssertionError(packet)

    def _query(self):
        stage, query = self._question()
        tables = []
        try:
            while (sent := self._block()) is not None:
                tables.append(sent)
            if stage == _STATES:
                query, known = _MAX.subn(
                    r"SELECT maxState(`\1`) AS `max(__table1.\1)` FROM", query
                )
                assert known, query
            else:
                assert stage == _COMPLETE, f"stage {stage}: {query}"
            for name, columns, native in tables:
                self._engine.run(
                    f"CREATE OR REPLACE TEMPORARY TABLE `{name}` ({columns}) ENGINE = Memory"
                )
                if native:
                    file = self._engine.folder / f"{name}.native"
                    file.write_bytes(native)
                    self._engine.run(f"INSERT INTO `{name}` SELECT * FROM file('{file}', Native)")
            query = _SCALAR_OF.sub(r"(SELECT * FROM `\1`)", query)
            self._engine.run(f"CREATE OR REPLACE TEMPORARY TABLE found ENGINE = Memory AS {query}")
            rows = int(self._engine.run("SELECT count() FROM found", form="TSV"))
            # A row is a block, and a block a packet.
            blocks = [
                self._engine.run(f"SELECT * FROM found LIMIT 1 OFFSET {row}", form="Native")
                for row in range(rows)
            ]
        except Exception as error:
            text = f"{error} [{query}]"
            self._send(_EXCEPTION, struct.pack("<i", 36), *map(_text, ("node", text, "")), b"\0")
            return
        for block in blocks:
            self._send(_FOUND, _text(""), _BLOCK, block)
        self._send(_END)

    def _question(self):
        self._texts(1)
        self._read(1)
        self._texts(3)
        interface = self._read(1)[0]
        if interface == _TCP:
            self._texts(3), self._varints(3)
        self._texts(1)
        if interface == _TCP:
            self._varints(1)
        while self._texts(1)[0]:  # settings
            self._varints(1), self._texts(1)
        stage, _ = self._varints(2)
        return stage, self._texts(1)[0]

    def _block(self):
        """Return a table's name, its columns, and its rows as Native; `None` = no more."""
        packet = self._read(1)[0]
        assert packet in {_DATA, _SCALAR}, packet
        [name] = self._texts(1)
        assert self._read(len(_BLOCK)) == _BLOCK
        columns, rows = self._varints(2)
        if packet == _DATA and not columns and not name:
            return None
        native, declared = _varint(columns) + _varint(rows), []
        for _ in range(columns):
            column, kind = self._texts(2)
            declared.append(f"`{column}` {kind}")
            native += _text(column) + _text(kind)
            if kind == "String":
                for _ in range(rows):
                    native += _text(self._texts(1)[0])
            else:
                native += self._read(_FIXED[kind] * rows)
        return name, ", ".join(declared), native if rows else b""

    def _varints(self, count):
        return [self._varint() for _ in range(count)]

    def _varint(self):
        number = shift = 0
        while True:
            [byte] = self._read(1)
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    def _texts(self, count):
        return [self._read(self._varint()).decode() for _ in range(count)]

    def _send(self, packet, *fields):
        self._connection.sendall(bytes((packet,)) + b"".join(fields))


def _listen(engine, port):
    def accept(server):
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_Asked(connection, engine).answer, daemon=True).start()

    server = socket.create_server(("127.0.0.1", port))
    threading.Thread(target=accept, args=(server,), daemon=True).start()


def main():
    """Make the printed schema, and do what each line says."""
    folder, configured, port = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    plain = chdb.connect

    def connect(path):
        connection = plain(f"{path}?config-file={configured}")
        for statement in (f"CREATE DATABASE IF NOT EXISTS {DATABASE}", f"USE {DATABASE}"):
            connection.query(statement, "Null")
        return connection

    chdb.connect = connect
    engine = Embedded(folder)
    engine.folder = folder
    _listen(engine, port)
    settings = {
        "input_format_protobuf_oneof_presence": 1,
        **engine.schema(otlp_to_spans.PROTO, otlp_to_spans.MESSAGE),
    }
    statements = [
        alone(one)
        for one in ddl.statements(DATABASE, CLUSTER, Keep())
        if not one.startswith("INSERT INTO schema_versions")
    ]
    print("{}", flush=True)
    for line in sys.stdin:
        said, rows = json.loads(line), ""
        try:
            if (made := said.get("run")) is not None:
                # The views read other nodes' tables, and join once, when they are made.
                for statement in statements:
                    if (" join_" in statement) == (made == "views"):
                        engine.run(statement)
            elif "body" in said:
                engine.insert("otlp", "Protobuf", bytes.fromhex(said["body"]), settings)
            else:
                rows = engine.run(said["sql"], form="JSONCompactEachRow").decode()
            answer = {"rows": [json.loads(one) for one in rows.splitlines()]}
        except Exception as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
