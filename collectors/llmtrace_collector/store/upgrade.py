"""Bring the tables and views of a store to the schema of this version.

A store has a schema number, in its table `schema_versions`. What `CREATE … IF NOT EXISTS` cannot
change is changed by numbered steps, each of which may be run twice. Whatever the number, missing
columns and indexes are added, and views whose text differs get the current one. A store of a newer
schema is rejected: its contents may mean something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from llmtrace.core.errors import ConfigError
from llmtrace_collector.store import join_inputs_sql, tables
from llmtrace_collector.store.sql_builder import from_file
from llmtrace_collector.store.sql_engine import Engine, query
from llmtrace_collector.store.tables import Keep, Table

# The number of this version's schema. The first one, 1, had no table for the number.
VERSION: Final = 5
UNNUMBERED: Final = 1
# Yields the statements that lead to a number from the one before, on a cluster or (`None`) a node.
Step = Callable[[str | None, Keep], Iterator[str]]


def _keys(cluster: str | None, keep: Keep) -> Iterator[str]:
    """Add the tables of keys, and continue versions as a sequence: they were times before."""
    yield from _reported_by(cluster, keep)
    on, _ = tables.places(cluster)
    for table in (tables.PART_KEYS, tables.REQUEST_KEYS):
        yield from tables.creating(table, cluster, keep)
    declared = declared_columns(tables.JOINS).columns
    added = ", ".join(_adding({name: declared[name] for name in ("version_ns", "first_start")}))
    for name in _everywhere(tables.JOINS, cluster):
        yield f"ALTER TABLE {name}{on} {added}"
    yield f"INSERT INTO part_keys\n{join_inputs_sql.keys_select('request_parts')}"
    yield from_file("request_keys_of_rows")
    # Twice, so that they count as settled: the previous process has counted these rows.
    for ago_h in (2, 1):
        yield from_file("settled_join", ago_h=str(ago_h))


def _reported_by(cluster: str | None, _: Keep) -> Iterator[str]:
    """Rename the column with the kinds of a request's parts to `reported_by`."""
    on, _local = tables.places(cluster)
    for name in _everywhere(tables.REQUESTS, cluster):
        yield f"ALTER TABLE {name}{on} RENAME COLUMN IF EXISTS told_by TO reported_by"


def _everywhere(table: Table, cluster: str | None) -> Iterable[str]:
    """Return the names of a table: on a cluster, first that of the nodes' own tables."""
    _, local = tables.places(cluster)
    return dict.fromkeys((f"{table.name}{local}", table.name))


# 4 added the column `gaps`, and 5 the table `reporting_spans`: these need no step, as what is missing
# is added, and views are updated, in any case.
STEPS: Final[Mapping[int, Step]] = {2: _keys, 3: _reported_by}

_HERE: Final = "database = currentDatabase()"


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns and indexes of a table, as its statement declares them.

    Attributes:
        columns: the declaration of each, without its name.
        indexes: the declaration of each, without its name.
    """

    columns: Mapping[str, str]
    indexes: Mapping[str, str]


def open_schema(engine: Engine, keep: Keep) -> None:
    """Create what a store lacks, and upgrade what it has to this version's schema.

    Raises:
        ConfigError: the store's schema is newer than this version's, or older and on a cluster,
            whose name is not known here.
        StoreError: the store does not answer; the next opening continues from there.
    """
    made = query(engine, f"SELECT name, engine, as_select FROM system.tables WHERE {_HERE}")
    kinds = {name: kind for name, kind, _ in made}
    version = version_of(engine)
    if version is not None and version > VERSION:
        raise ConfigError(
            f"store {engine.name}: its schema is {version}, made by a newer llmtrace; this one "
            f"knows {VERSION}. Run the newer version"
        )
    is_distributed = kinds.get(tables.REQUESTS.name) == "Distributed"
    if is_distributed and version != VERSION:
        raise ConfigError(
            f"store {engine.name}: its schema is {version}, this version's is {VERSION}, and it is "
            f"on a cluster: run what `llmtrace schema clickhouse --cluster NAME --from {version}` "
            "prints"
        )
    if version is not None:
        for number, step in STEPS.items():
            for statement in step(None, keep) if number > version else ():
                engine.run(statement)
    for statement in tables.table_statements(None, keep):
        engine.run(statement)
    upgrading = version is not None and not is_distributed
    if upgrading:
        for statement in _alterations(engine):
            engine.run(statement)
    # First what is missing: the existing views may soon read it.
    for statement in tables.view_statements():
        engine.run(statement)
    if upgrading:
        _follow_views(engine)
    if version != VERSION:
        engine.run(_noting())


def version_of(engine: Engine) -> int | None:
    """Return the number of a store's schema; `None` = there is no store yet.

    Raises:
        StoreError: the store does not answer.
    """
    names = {name for (name,) in query(engine, f"SELECT name FROM system.tables WHERE {_HERE}")}
    if tables.REQUESTS.name not in names:
        return None
    if tables.VERSIONS not in names:
        return UNNUMBERED
    [(found,)] = query(engine, f"SELECT max(version) FROM {tables.VERSIONS}")
    return int(found) or UNNUMBERED


def making(cluster: str | None, keep: Keep) -> Iterator[str]:
    """Yield the statements that create this schema from scratch."""
    yield from tables.table_statements(cluster, keep)
    yield from tables.view_statements(*tables.places(cluster))
    yield _noting()


def statements(since: int, cluster: str | None, keep: Keep) -> Iterator[str]:
    """Yield the statements that upgrade a server's tables to this schema. May be run twice.

    Args:
        since: the number of the existing schema.
        cluster: of the server's `remote_servers`, if the tables are on one.
        keep: the retention times.

    Raises:
        ConfigError: there is no such number.
    """
    if not UNNUMBERED <= since <= VERSION:
        raise ConfigError(f"--from {since}: there are schemas {UNNUMBERED} to {VERSION}")
    on, local = tables.places(cluster)
    for number, step in STEPS.items():
        yield from step(cluster, keep) if number > since else ()
    yield from tables.table_statements(cluster, keep)
    for table in tables.TABLES:
        declared = declared_columns(table)
        for name in _everywhere(table, cluster):
            changes = [*_adding(declared.columns), *_widening(declared.columns)]
            if name == f"{table.name}{local}":  # a distributed table has no indexes
                changes += _indexing(declared.indexes)
            yield f"ALTER TABLE {name}{on} {', '.join(changes)}"
    yield from tables.view_statements(on, local)
    for name, select in tables.view_selects(local).items():
        yield f"ALTER TABLE {name}{on} MODIFY QUERY\n{select}"
    yield _noting()


def declared_columns(table: Table) -> Columns:
    """Return a table's columns and indexes by name, except nested columns, which never change."""
    columns, indexes = {}, {}
    for line in _split(table.columns):
        name, _, rest = line.partition(" ")
        if name == "INDEX":
            name, _, rest = rest.partition(" ")
            indexes[name] = rest
        elif not rest.startswith("Nested"):
            columns[name] = rest
    return Columns(columns, indexes)


def _split(text: str) -> Iterator[str]:
    """Split at commas outside of brackets and quotes."""
    depth, quoted, start = 0, False, 0
    for place, sign in enumerate(text):
        if sign == "'":
            quoted = not quoted
        elif not quoted:
            depth += (sign == "(") - (sign == ")")
            if sign == "," and depth == 0:
                yield " ".join(text[start:place].split())
                start = place + 1
    yield " ".join(text[start:].split())


def _alterations(engine: Engine) -> Iterator[str]:
    """Yield the statements that add missing columns and indexes, and new members of enums."""
    have = {
        (table, name): kind
        for table, name, kind in query(
            engine, f"SELECT table, name, type FROM system.columns WHERE {_HERE}"
        )
    }
    indexed = {
        (table, name)
        for table, name in query(
            engine, f"SELECT table, name FROM system.data_skipping_indices WHERE {_HERE}"
        )
    }
    for table in tables.TABLES:
        declared = declared_columns(table)
        missing = {
            name: rest for name, rest in declared.columns.items() if (table.name, name) not in have
        }
        grown = {
            name: rest
            for name, rest in declared.columns.items()
            if name not in missing and not rest.startswith(have[table.name, name])
        }
        new = {
            name: rest
            for name, rest in declared.indexes.items()
            if (table.name, name) not in indexed
        }
        changes = [*_adding(missing), *_widening(grown), *_indexing(new)]
        if changes:
            yield f"ALTER TABLE {table.name} {', '.join(changes)}"


def _adding(columns: Mapping[str, str]) -> Iterator[str]:
    return (f"ADD COLUMN IF NOT EXISTS {name} {rest}" for name, rest in columns.items())


def _indexing(indexes: Mapping[str, str]) -> Iterator[str]:
    return (f"ADD INDEX IF NOT EXISTS {name} {rest}" for name, rest in indexes.items())


def _widening(columns: Mapping[str, str]) -> Iterator[str]:
    """Yield the changes that add new members to enums; changing another type needs a step."""
    return (
        f"MODIFY COLUMN {name} {rest}"
        for name, rest in columns.items()
        if rest.startswith(("Enum8(", "Array(Enum8("))
    )


def _follow_views(engine: Engine) -> None:
    """Give existing views the current text; inserts meanwhile pass through either version.

    Texts are compared without writing anything, and without the database before each table's name.
    """
    texts = "[as_select, formatQuerySingleLine({select:String})]"
    bare = f"arrayMap(text -> replaceRegexpAll(text, '`?' || currentDatabase() || '`?[.]', ''), {texts})"
    sql = f"SELECT {bare} FROM system.tables WHERE {_HERE} AND name = {{name:String}}"
    for name, select in tables.view_selects().items():
        [((stored, current),)] = query(engine, sql, {"name": name, "select": select})
        if stored != current:
            engine.run(f"ALTER TABLE {name} MODIFY QUERY\n{select}")


def _noting() -> str:
    return from_file("note_version", table=tables.VERSIONS, version=str(VERSION))
