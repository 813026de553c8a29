"""What of prompts and answers is recorded if the user wants it: redacted, cut, or nothing."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core.content import (
    CUT,
    INPUT,
    OUTPUT,
    SYSTEM,
    Content,
    ContentPolicy,
    plain,
    tool_content,
)
from llmtrace.core.failopen import internal_errors
from tests.support.internal_errors import reset_internal_errors

texts = st.text(max_size=300)


@pytest.fixture(autouse=True)
def _counted_anew():
    reset_internal_errors()
    yield
    reset_internal_errors()


def message(text, role="user"):
    """Make a message as it is sent."""
    return role, [{"type": "text", "content": text}]


def conversation(policy, *messages):
    """Return what is recorded of a conversation."""
    content = Content(policy)
    content.add_prompt([message(one) for one in messages], lambda one: one)
    return json.loads(content.attributes(None)[INPUT])


def said(policy, *pieces):
    """Return what is recorded of an answer that came in pieces."""
    content = Content(policy)
    for piece in pieces:
        content.said(piece)
    recorded = content.attributes("stop").get(OUTPUT)
    return None if recorded is None else json.loads(recorded)[0]["parts"][0]["content"]


def all_texts(attributes):
    """Return every text that is recorded."""
    messages = [
        *json.loads(attributes.get(INPUT, "[]")),
        *json.loads(attributes.get(OUTPUT, "[]")),
    ]
    parts = [part for one in messages for part in one["parts"]]
    return [part.get("content", part.get("arguments", "")) for part in parts]


# --- shapes -------------------------------------------------------------------------------------


def test_messages_are_in_the_conventions_shape():
    """Roles, parts, tool calls and the finish reason are where OpenTelemetry says."""
    content = Content(ContentPolicy())
    content.instructed([{"type": "text", "content": "Be brief."}])
    content.add_prompt([message("Hi")], lambda one: one)
    content.said("hm", "reasoning")
    content.said("Let me ")
    content.said("look")
    content.called(0, name="search", call_id="call_1", piece='{"q": ')
    content.called(0, piece='"tea"}')
    content.said("Second", choice=1)
    recorded = {name: json.loads(text) for name, text in content.attributes("tool_calls").items()}

    assert recorded == {
        SYSTEM: [{"type": "text", "content": "Be brief."}],
        INPUT: [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}],
        OUTPUT: [
            {
                "role": "assistant",
                "parts": [
                    {"type": "reasoning", "content": "hm"},
                    {"type": "text", "content": "Let me look"},
                    {
                        "type": "tool_call",
                        "id": "call_1",
                        "name": "search",
                        "arguments": '{"q": "tea"}',
                    },
                ],
                "finish_reason": "tool_calls",
            },
            {
                "role": "assistant",
                "parts": [{"type": "text", "content": "Second"}],
                "finish_reason": "tool_calls",
            },
        ],
    }


def test_nothing_asked_and_nothing_said():
    """What there is none of is left out."""
    assert Content(ContentPolicy()).attributes(None) == {}


def test_what_is_no_text_keeps_its_type():
    """A picture is noted as one; its data is not recorded."""
    content = Content(ContentPolicy())
    content.add_prompt([("user", [{"type": "image_url"}])], lambda one: one)

    assert json.loads(content.attributes(None)[INPUT])[0]["parts"] == [{"type": "image_url"}]


def test_a_lone_surrogate_can_be_sent():
    """What cannot be encoded is replaced; the rest stays."""
    content = Content(ContentPolicy())
    content.said("a\ud800b")
    recorded = content.attributes(None)[OUTPUT]

    assert recorded.encode()
    assert "a?b" in recorded


# --- size ---------------------------------------------------------------------------------------


def test_a_long_text_is_cut_and_says_so():
    """So many bytes, and a mark that it goes on."""
    assert said(ContentPolicy(limit=5), "hello world") == f"hello{CUT}"
    assert said(ContentPolicy(limit=5), "hello") == "hello"


def test_a_character_is_not_cut_in_half():
    """The limit is in bytes, and falls between two characters."""
    assert said(ContentPolicy(limit=4), "ééé") == f"éé{CUT}"
    assert said(ContentPolicy(limit=5), "ééé") == f"éé{CUT}"


def test_of_a_long_conversation_its_end_is_kept():
    """The newest messages are what is new; how many are left out is said."""
    recorded = conversation(
        ContentPolicy(limit=200), *(f"message {n} {'x' * 50}" for n in range(9))
    )

    assert recorded[-1]["parts"][0]["content"].startswith("message 8")
    assert recorded[0]["parts"][0]["content"].endswith("earlier messages cut]")
    assert len(recorded) < 5


@given(st.lists(texts, max_size=30), st.integers(1, 2000))
def test_a_conversation_fits(messages, limit):
    """However many messages of whatever length, the texts come to no more than the limit."""
    content = Content(ContentPolicy(limit=limit))
    content.add_prompt([message(one) for one in messages], lambda one: one)
    recorded = content.attributes(None)
    kept = [text.removesuffix(CUT) for text in all_texts(recorded) if "messages cut]" not in text]

    assert sum(len(text.encode()) for text in kept) <= limit
    assert internal_errors() == {}


@given(st.lists(texts, max_size=30), st.integers(1, 2000))
def test_an_answer_fits(pieces, limit):
    """However an answer comes, it is its beginning that is kept, within the limit."""
    whole = "".join(pieces)
    recorded = said(ContentPolicy(limit=limit), *pieces)

    if not whole:
        assert recorded is None
        return
    kept = recorded.removesuffix(CUT)
    assert len(kept.encode()) <= limit
    assert whole.encode("utf-8", "replace").decode().startswith(kept)
    assert recorded.endswith(CUT) == (len(whole.encode("utf-8", "replace")) > limit)


def test_collecting_is_bounded():
    """An answer a thousand times the limit takes no more memory than the limit."""
    policy = ContentPolicy(limit=100)
    content = Content(policy)
    for number in range(100_000):
        content.said("word ")
        content.called(number, name="f", piece="{}")
        content.said("x", choice=number)
    kept = [part for choice in content._choices.values() for part in choice.values()]

    assert len(kept) <= 256
    assert sum(len("".join(part.get("content", []))) for part in kept) <= policy.collected


# --- redaction ----------------------------------------------------------------------------------


def hide(text):
    """Redact as a user may."""
    return text.replace("hunter2", "[secret]")


def test_each_text_is_redacted():
    """Messages, answers, reasoning, arguments and results go through the hook."""
    policy = ContentPolicy(redact=hide)
    content = Content(policy)
    content.instructed([{"type": "text", "content": "hunter2"}])
    content.add_prompt([message("my password is hunter2")], lambda one: one)
    content.said("hunter", "reasoning")
    content.said("2 it is", "reasoning")
    content.called(0, name="log_in", piece='{"password": "hunter')
    content.called(0, piece='2"}')
    recorded = json.dumps(content.attributes(None))

    assert "hunter2" not in recorded
    assert recorded.count("[secret]") == 4
    assert tool_content(policy, {"password": ["hunter2"]}) == '{"password": ["[secret]"]}'


def test_a_text_the_hook_drops():
    """`None` from the hook is a text of no length."""
    assert said(ContentPolicy(redact=lambda _: None), "hello") == ""


@pytest.mark.parametrize("wrong", [lambda text: text.nothing, lambda _: 5, lambda _: sys.exit(2)])
def test_a_hook_that_fails_costs_all_content(wrong, caplog):
    """Nothing of the request is recorded, that is counted, and no text gets into the log."""

    def redact(text):
        return wrong(text) if "hunter2" in text else text

    content = Content(ContentPolicy(redact=redact))
    content.add_prompt([message("hello")], lambda one: one)
    content.said("hunter2")

    assert content.attributes(None) == {}
    assert content.attributes(None) == {}
    assert internal_errors() == {"content.redact": 1}
    assert "hunter2" not in caplog.text


def test_a_hook_that_quotes_the_text_in_its_error(caplog):
    """The error's own text is not logged."""

    def redact(text):
        raise ValueError(f"cannot redact {text}")

    assert tool_content(ContentPolicy(redact=redact), {"password": "hunter2"}) is None
    assert "ValueError" in caplog.text
    assert "hunter2" not in caplog.text.replace('{text}")', "")


@pytest.mark.parametrize("at", range(90, 112))
def test_a_secret_across_the_cut_is_seen_whole(at):
    """The hook is given more than is kept, so that half a secret is not what remains."""
    policy = ContentPolicy(limit=100, redact=hide)
    text = "x" * at + "hunter2" + "y" * 10_000

    for recorded in (said(policy, *text), conversation(policy, text)[0]["parts"][0]["content"]):
        assert "hunter" not in recorded


@given(st.integers(0, 5000), st.integers(1, 300))
def test_a_secret_across_the_end_of_what_is_collected(before, limit):
    """Where collecting ends, half a secret may be: it is not recorded, whatever became shorter."""
    policy = ContentPolicy(
        limit=limit, redact=lambda text: text.replace("x", "").replace("S3CRET", "")
    )

    assert "S3" not in said(policy, "x" * before, "S3CRET", "y" * 6000)


# --- failing ------------------------------------------------------------------------------------


def test_what_cannot_be_read_costs_all_content(caplog):
    """A protocol that is not as expected leaves nothing half recorded."""
    content = Content(ContentPolicy())
    content.said("hello")

    def broken(_content, chunk):
        raise ValueError(chunk)

    content.guarded(broken, "hunter2")
    content.guarded(lambda content: content.said("more"))

    assert content.attributes(None) == {}
    assert internal_errors() == {"content": 1}
    assert "hunter2" not in caplog.text


# --- plain data ---------------------------------------------------------------------------------


class Opaque:
    """An object whose own text would be a secret."""

    def __repr__(self):
        return "hunter2"

    __str__ = __repr__


@dataclass
class Form:
    """Data of the application's own."""

    name: str
    rest: list[object]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, 2.5, None, True, "x"]}, '{"a": [1, 2.5, null, true, "x"]}'),
        (("x", {"y"}), '["x", ["y"]]'),
        (Opaque(), '"<Opaque>"'),
        (Form("Ann", [Opaque()]), '{"name": "Ann", "rest": ["<Opaque>"]}'),
        ({1: Opaque()}, '{"1": "<Opaque>"}'),
        ("text as it is", "text as it is"),
        (None, "null"),
    ],
)
def test_values_as_json(value, expected):
    """Plain data is written as JSON; what is no data by its type, and never by its own text."""
    assert tool_content(ContentPolicy(), value) == expected


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=30,
    ),
    st.integers(1, 500),
)
def test_any_value_fits(value, limit):
    """Whatever a tool is given, what is recorded is text within the limit."""
    recorded = tool_content(ContentPolicy(limit=limit), value)

    assert recorded is not None
    assert len(recorded.removesuffix(CUT).encode()) <= limit


def test_a_large_value_is_copied_in_part():
    """A list without an end, or a value inside itself, is cut."""
    circular = {}
    circular["self"] = [circular]

    assert len(plain(list(range(10**6)), 100)) <= 1001
    assert CUT in str(plain(circular, 100))
    assert plain("x" * 1000, 10) == "x" * 10 + CUT
