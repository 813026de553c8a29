"""Do the printed views come to the same rows on two shards as a store does on one node?"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest

from llmtrace_collector.store import join_inputs_sql
from tests.collector.store.sent import body_of, fetch, join, send
from tests.collector.store.shard_node import config
from tests.collector.store.test_join import engine_span, gateway_span, plugin_span, row
from tests.support.free_ports import free_port

COLUMNS = ["reported_by", "queue_source", "queue_ns", "gateway_ns", "replica", "parts"]


@contextmanager
def node(folder, ports, own):
    """Start a node in a process of its own; yields what has it do something."""
    folder.mkdir()
    (folder / "config.xml").write_text(config(ports, own))
    command = [sys.executable, "-m", "tests.collector.store.shard_node",
               str(folder / "node"), str(folder / "config.xml"), str(own)]  # fmt: skip

    def say(**what):
        child.stdin.write(json.dumps(what) + "\n")
        child.stdin.flush()
        return answered()

    def answered():
        answer = json.loads(child.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer.get("rows")

    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            answered()
            yield say
        finally:
            child.kill()


def test_two_shards_make_the_rows_of_one_node(store, tmp_path):
    """Each makes those of its own traces, with records of engines that lie on the other."""
    rows = [row() for _ in range(6)]
    # Of the same ids: neither gets the record.
    rows.append(row(response_id=rows[5].response_id, request_id=rows[5].request_id))
    records = [plugin_span(one.response_id, queue=0.01 * n) for n, one in enumerate(rows[:6], 1)]
    inside = [engine_span(rows[2]), gateway_span(rows[3], 0.005)]
    # By trace: each record lies on the other shard than its row, and the twins on two.
    first = [rows[0], rows[2], inside[0], rows[4], rows[5], records[1], records[3]]
    second = [rows[1], rows[3], inside[1], rows[6], records[0], records[2], records[4], records[5]]
    ports = [free_port(), free_port()]
    with ExitStack() as nodes:
        shards = [nodes.enter_context(node(tmp_path / str(own), ports, own)) for own in ports]
        for say in shards:
            say(run="tables")
        for say, here in zip(shards, (first, second), strict=True):
            say(body=body_of(here).hex())
        for say in shards:
            say(run="views")
        rows_made = f"SELECT span_id, {', '.join(COLUMNS)} FROM requests_local FINAL"
        made = [{span: found for span, *found in say(sql=rows_made)} for say in shards]
    send(store, [*first, *second])
    join(store)

    assert [set(one) for one in made] == [
        {one.span_id for one in rows if any(one is other for other in here)}
        for here in (first, second)
    ]
    expected = {span: list(found.values())[1:] for span, found in fetch(store, COLUMNS).items()}
    assert {**made[0], **made[1]} == expected
    assert expected[rows[0].span_id][0] == ["row", "plugin"]
    assert expected[rows[5].span_id][0] == expected[rows[6].span_id][0] == ["row"]


@pytest.mark.parametrize(
    "step",
    [
        join_inputs_sql.traces,
        join_inputs_sql.around,
        join_inputs_sql.around_large,
        join_inputs_sql.named,
    ],
)
def test_what_is_stored_is_compared_with_a_steps_table_globally(step):
    """A shard that is asked has no table of a step: it gets the ids along with the question."""
    text = step()
    assert "GLOBAL" in text
    assert " IN (SELECT" not in text.replace("GLOBAL IN", "").replace("GLOBAL NOT IN", "")
