"""llmtrace and Langfuse's own SDK coexist in one process: one trace, nothing twice or lost.

With the real `langfuse` package, its `@observe` and its `langfuse.openai`, in a program of its own
that sends to a local endpoint.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from llmtrace.core.stages import PARTITION
from tests.exporters.receivers import http_receiver
from tests.exporters.test_wire import attributes_of

ROOT = Path(__file__).parents[2]
SCOPES = ("llmtrace", "langfuse-sdk", "com.anthropic.sdk.python")


@dataclass(frozen=True)
class Observation:
    """A span as Langfuse gets it."""

    name: str
    id: str
    parent: str
    scope: str
    start: int
    end: int
    attributes: dict

    def __getattr__(self, name):
        return self.attributes.get(f"langfuse.observation.{name}")

    @property
    def tokens(self):
        """The tokens that Langfuse counts of it."""
        return json.loads(self.usage_details or "{}")


@pytest.fixture(scope="module")
def program():
    """What the program sent, by scenario, and what it said."""
    with http_receiver() as received:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OTEL_", "LANGFUSE_", "LLMTRACE_"))
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.exporters.langfuse_program"],
            cwd=ROOT,
            env={
                **environment,
                "LANGFUSE_PUBLIC_KEY": "pk-lf-1",
                "LANGFUSE_SECRET_KEY": "sk-lf-2",
                "LANGFUSE_BASE_URL": received.url,
                "LANGFUSE_TRACING_ENVIRONMENT": "staging",
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout.splitlines()[-1])
        return {
            "said": said,
            "requests": received.requests,
            **{name: of_trace(received, trace) for name, trace in said["traces"].items()},
        }


def of_trace(received, trace):
    """Return all observations of one trace."""
    return [
        Observation(
            name=span.name,
            id=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            scope=scope.scope.name,
            start=span.start_time_unix_nano,
            end=span.end_time_unix_nano,
            attributes=attributes_of(span),
        )
        for request in received.requests
        for resource in request.message.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        if span.trace_id.hex() == trace
    ]


def rows(observations):
    """Return those that are requests as llmtrace recorded them."""
    return [
        one
        for one in observations
        if "llmtrace.e2e" in one.attributes and one.type in {"generation", "span"}
    ]


def counted(observations):
    """Return those whose tokens and costs Langfuse counts."""
    return [one for one in observations if one.type in {"generation", "embedding"}]


def under(observations, parent):
    """Return what lies directly under an observation."""
    return [one for one in observations if one.parent == parent.id]


# What each scenario asks for: requests to a model, and how they end.
ENDS = {
    "stream": ["success"],
    "whole": ["success"],
    "astream": ["success"],
    "other_sdk": ["success"],
    "inside_a_generation": ["success"],
    "decorated": ["success"],
    "decorated_with_a_step": ["success"] * 2,
    "agent": ["success"] * 2,
    "failing": ["error"],
    "refused": ["error"],
    "left_early": ["cancelled"],
    "cancelled": ["cancelled"],
    "at_once": ["success"] * 4,
    "in_threads": ["success"] * 2,
}
each = pytest.mark.parametrize("scenario", ENDS)


def test_nothing_was_lost(program):
    """All of it was sent, through Langfuse's own way, and nothing in llmtrace went wrong."""
    assert program["said"]["flushed"]
    assert program["said"]["lost"] == {}
    assert set(program["said"]["traces"]) == set(ENDS)
    assert {r.headers["x-langfuse-sdk-name"] for r in program["requests"]} == {"python"}
    assert {r.path for r in program["requests"]} == {"/api/public/otel/v1/traces"}


@each
def test_every_request_is_a_row(program, scenario):
    """Each request is there once, with how it ended, and its stages end to end under it."""
    observations = program[scenario]

    assert [one.attributes["llmtrace.outcome"] for one in rows(observations)] == ENDS[scenario]
    for row in rows(observations):
        stages = [
            one
            for one in under(observations, row)
            if one.scope == "llmtrace" and one.name in PARTITION
        ]
        assert len(stages) >= 2
        assert row.end - row.start == sum(one.end - one.start for one in stages)
        assert {one.type for one in stages} == {"span"}


@each
def test_every_request_is_counted_once(program, scenario):
    """There is one generation for each request of any SDK, and its tokens are there once."""
    observations = program[scenario]
    generations = counted(observations)
    tokens = [one.tokens for one in generations if one.tokens]

    assert len(generations) == len(ENDS[scenario])
    if scenario == "inside_a_generation":
        assert tokens == []  # the application's own: it says what it knows
    elif set(ENDS[scenario]) == {"success"}:
        assert len(tokens) == len(generations)
    assert not any(one.tokens for one in observations if one not in generations)


@each
def test_it_is_one_tree(program, scenario):
    """Nothing hangs in the air: each observation's parent is one of the same trace."""
    observations = program[scenario]
    known = {one.id for one in observations}
    roots = [one for one in observations if not one.parent]

    assert [one.name for one in roots] == [scenario]
    assert {one.parent for one in observations} - known == {""}
    assert max(Counter(one.id for one in observations).values()) == 1
    assert {one.scope for one in observations} <= set(SCOPES)
    assert [
        one.name for one in observations if one.attributes.get("langfuse.internal.is_app_root")
    ] == [scenario]


@pytest.mark.parametrize(
    "scenario", ["stream", "whole", "astream", "failing", "refused", "left_early", "at_once"]
)
def test_the_row_lies_under_langfuses_generation(program, scenario):
    """A call that `langfuse.openai` records has llmtrace's row under it, and no other's."""
    observations = program[scenario]
    for row in rows(observations):
        (parent,) = [one for one in observations if one.id == row.parent]
        assert parent.name == "OpenAI-generation"
        assert parent.type == "generation"
        assert row.type == "span"
        assert [row] == rows(under(observations, parent))


def test_langfuses_generation_learns_the_tokens(program):
    """`langfuse.openai` does not see the usage chunk of llmtrace's; llmtrace adds it."""
    (generation,) = counted(program["stream"])

    assert generation.tokens == {"input": 11, "input_cached_tokens": 0, "output": 4}
    assert generation.output  # what it knows itself stays its own


def test_what_langfuse_says_itself_stays(program):
    """Tokens that `langfuse.openai` read from the answer are not written over."""
    (generation,) = counted(program["whole"])

    assert generation.tokens["prompt_tokens"] == 11


@pytest.mark.parametrize("scenario", ["failing", "refused"])
def test_failures_show_on_both(program, scenario):
    """A stream that failed is an ERROR, also on the generation that would not have said so."""
    (generation,) = counted(program[scenario])
    (row,) = rows(program[scenario])

    assert generation.level == row.level == "ERROR"
    assert row.status_message.startswith(
        ("the request failed: openai.", "the request failed: InternalServerError")
    )
    assert generation.status_message


@pytest.mark.parametrize("scenario", ["left_early", "cancelled"])
def test_leaving_is_no_failure(program, scenario):
    """A stream that its consumer left is no error."""
    assert {one.level for one in program[scenario]} == {None}


def test_a_call_of_another_sdk_is_llmtraces_generation(program):
    """What Langfuse does not record itself is a generation of llmtrace's, with its first token."""
    observations = program["other_sdk"]
    (row,) = rows(observations)
    (theirs,) = [one for one in observations if one.scope == "com.anthropic.sdk.python"]

    assert counted(observations) == [row]
    assert row.completion_start_time
    assert theirs.type == "span"


def test_a_decorated_function_is_around_langfuses_generation(program):
    """The row of the function that makes the call is what the generation lies under."""
    observations = program["decorated"]
    (row,) = rows(observations)
    (generation,) = counted(observations)

    assert generation.parent == row.id
    assert row.type == "span"
    assert generation.tokens["output"] == 4


def test_a_second_call_lies_under_the_step_that_makes_it(program):
    """Inside a decorated function, what Langfuse observes has its own calls under it."""
    observations = program["decorated_with_a_step"]
    (step,) = [one for one in observations if one.name == "step"]
    first, inner = sorted(rows(observations), key=lambda row: row.start)

    assert step.parent == first.parent  # the function is a span around both
    assert inner.parent == step.id


def test_a_turn_is_an_agent_and_its_tools_are_tools(program):
    """The agent has the call and the tool under it, and what the tool asks lies under that."""
    observations = program["agent"]
    (agent,) = [one for one in observations if one.type == "agent"]
    (tool,) = [one for one in observations if one.type == "tool"]
    (generation,) = [one for one in counted(observations) if one.scope == "langfuse-sdk"]
    (inner,) = [one for one in counted(observations) if one.scope == "llmtrace"]

    assert (agent.name, tool.name) == ("invoke_agent helper", "execute_tool weather")
    assert {one.id for one in under(observations, agent)} == {tool.id, generation.id}
    assert inner.parent == tool.id
    for one in (agent, tool, inner):
        assert one.attributes["session.id"] == "s-1"


def test_user_session_and_tags_are_on_everything(program):
    """What `propagate_attributes` says holds for rows and stages; what `annotate` says, too."""
    for scenario in ("stream", "decorated"):
        ours = [one for one in program[scenario] if one.scope == "llmtrace"]
        assert len(ours) >= 6
        for one in ours:
            assert one.attributes["user.id"] == "ada"
            assert one.attributes["session.id"] == "s-1"
            assert one.attributes["langfuse.trace.tags"] == ("beta",)
