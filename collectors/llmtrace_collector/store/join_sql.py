"""Run the join: make rows of the parts that arrived, in whatever order they come.

A row is computed from all stored parts of its request each time, so that duplicates change nothing
and late parts are included. The newest version of a row counts; one made of fewer parts than the
stored one is not written. What belongs together:

    engine span, plugin record   the response id, else the request id (as `llmtrace.engines.join`)
    engine span                  else below the request in its trace
    gateway span                 below the request in its trace
    page's beacon                the same trace, over the outermost request (`browser.join`)

`join_inputs_sql` and `match_sql` find it, and `rows_sql` makes a row of it.
"""

from __future__ import annotations

import time
from typing import Any, Final

from llmtrace_collector.store import join_inputs_sql, match_sql, rows_sql
from llmtrace_collector.store.records import JoinReport
from llmtrace_collector.store.sql_engine import JSON_ROWS, Engine, parsed

_NS: Final = 1_000_000_000
# How far to look back where it is not known for how long the clock was wrong.
_BACK_S: Final = 600
# How far a clock may fall behind the elapsed time before it counts as set back.
_LOSES_S: Final = 1.0
# With so few new parts, more threads cost more than they save.
_FEW: Final = 5_000


class Joiner:
    """Runs the join of one store, remembering how far it has come."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        [(far, version)] = self._read("SELECT max(until_ns), max(version_ns) FROM joins")
        self._far, self._version = int(far), int(version)
        self._looked_s: float | None = None
        self._settings = ""
        self._shapes: dict[tuple[str, ...], str] = {}
        self.keyed = False  # whether all parts have their keys: an insert may have stopped halfway

    def join(self, now_ns: int) -> JoinReport:
        """Write the rows of all requests that parts which arrived since the last call may change."""
        began = time.perf_counter()
        until = self._engine.settled_ns(now_ns) // 1000 * 1000 - 1000
        since = self._since(until)
        looked_s = time.monotonic()
        rows, large, without = 0, 0, {}
        if not self.keyed:
            self._engine.run(
                f"INSERT INTO part_keys\n{join_inputs_sql.missing_keys(_moment(since))}"
            )
            self.keyed = True
        if since < until and self._look(since, until):
            self._fill("join_traces", join_inputs_sql.traces())
            [(large,)] = self._read("SELECT countIf(large) FROM join_traces")
            self._fill("join_around", join_inputs_sql.around())
            if int(large):
                text = join_inputs_sql.around_large()
                self._engine.run(f"INSERT INTO join_around\n{text}")
            without = self._without_row()
            rows = self._write()
        self._far, self._looked_s = until, looked_s
        seconds = time.perf_counter() - began
        self._engine.run(
            "INSERT INTO joins (until_ns, version_ns, seconds) VALUES"
            f" ({until}, {self._version}, {seconds:.6f})"
        )
        return JoinReport(rows, large_traces=int(large), without_row=without)

    def _since(self, until: int) -> int:
        """Return the moment after which parts are new, even if the clock has been set since."""
        if self._looked_s is None:
            passed_s = float(_BACK_S) if until < self._far else 0.0
        else:
            passed_s = time.monotonic() - self._looked_s + _LOSES_S
        if until < self._far + round((passed_s - 2 * _LOSES_S) * _NS):
            return min(self._far, until - round(passed_s * _NS))
        return self._far

    def _look(self, since: int, until: int) -> bool:
        """Find the parts that are new; return whether there are any."""
        self._fill("join_fresh", join_inputs_sql.fresh(_moment(since), _moment(until)))
        [(count, version)] = self._read(
            "SELECT count(), (SELECT max(version_ns) FROM joins) FROM join_fresh"
        )
        self._version = max(self._version, int(version))
        self._settings = "\nSETTINGS max_threads = 1" if int(count) <= _FEW else ""
        return int(count) > 0

    def _without_row(self) -> dict[str, int]:
        found = self._read(join_inputs_sql.without_row())
        return {str(reason): int(count) for reason, count in found}

    def _write(self) -> int:
        kinds = {kind for (kind,) in self._read("SELECT DISTINCT toString(kind) FROM join_around")}
        placed = bool(kinds & join_inputs_sql.PLACED)
        if placed:
            self._fill("join_above", join_inputs_sql.above())
        self._fill("join_affected", join_inputs_sql.affected(placed=placed))
        self._fill("join_named", join_inputs_sql.named())
        [(present, *naming)] = self._read(join_inputs_sql.present())
        kinds = set(present)
        if not placed and (placed := bool(kinds & join_inputs_sql.PLACED)):
            self._fill("join_above", join_inputs_sql.above())
        ids = [name for name, n in zip(join_inputs_sql.IDS, naming, strict=True) if int(n)]
        self._fill("join_found", match_sql.found(kinds, ids), *sorted(kinds), *ids)
        known = (
            {"gateway": "notEmpty(gateway_found)", "page": "notEmpty(page_found)"}
            if placed
            else {}
        )
        known |= {who: f"{who}_joined" for who in match_sql.records_of(kinds)}
        selected = ", ".join(("count()", *(f"countIf({one})" for one in known.values())))
        [(rows, *counts)] = self._read(f"SELECT {selected} FROM join_found")
        if not int(rows):
            return 0
        found = [kind for kind, n in zip(known, counts, strict=True) if int(n)]
        self._version += 1
        columns = ", ".join(rows_sql.COLUMNS)
        self._engine.run(
            f"INSERT INTO requests ({columns}, version_ns)\n"
            f"SELECT {columns}, toUInt64({self._version}) AS version_ns\n"
            f"FROM (\n{rows_sql.select(found)}\n){self._settings}"
        )
        return int(rows)

    def _fill(self, table: str, query: str, *variant: str) -> None:
        """Fill the temporary table of one step, which only this thread's connection sees.

        With few parts nearly all of the time is spent analysing the query. `CREATE … AS SELECT` does
        that twice, once only for the columns, which are the same each time.

        Args:
            table: of the step.
            query: of its lines.
            variant: what the query's columns depend on, in addition to the table.
        """
        shape = self._shapes.get((table, *variant))
        if shape is None:
            described = self._read(f"DESCRIBE TABLE (\n{query}\n)")
            shape = ", ".join(f"`{name}` {kind}" for name, kind, *_ in described)
            self._shapes[table, *variant] = shape
        self._engine.run(f"CREATE OR REPLACE TEMPORARY TABLE {table} ({shape}) ENGINE = Memory")
        self._engine.run(f"INSERT INTO {table}\n{query}{self._settings}")

    def _read(self, sql: str) -> list[list[Any]]:
        return parsed(self._engine.run(sql, form=JSON_ROWS))


def _moment(ns: int) -> str:
    return f"fromUnixTimestamp64Nano({ns}, 'UTC')"
