"""Any provider's own code for an error is found, within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core import error_codes
from llmtrace.core.error_codes import code_in, code_of
from llmtrace.core.error_outcomes import outcome_of


@pytest.fixture(autouse=True)
def _nothing_seen(monkeypatch):
    """No code was seen before."""
    monkeypatch.setattr(error_codes, "_seen", set())


class ApiError(Exception):
    """What an SDK raises: it carries the answer's body."""

    def __init__(self, body):
        super().__init__("no")
        self.body = body


OPENAI = {
    "message": "This model's maximum context length is 128000 tokens.",
    "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded",
}  # fmt: skip
VLLM = {
    "error": {
        "message": "This model's maximum context length is 256 tokens. However, your prompt "
        "contains 300 input tokens, which exceeds this limit even without any output tokens.",
        "type": "BadRequestError", "param": "input_tokens", "code": 400,
    }
}  # fmt: skip


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (OPENAI, "context_length_exceeded"),
        ({"error": OPENAI}, "context_length_exceeded"),
        (VLLM, "context_length_exceeded"),
        ({"message": "no", "type": "requests", "code": "rate_limit_exceeded"},
         "rate_limit_exceeded"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
         "overloaded_error"),
        ({"type": "error", "error": {"type": "invalid_request_error",
                                     "message": "prompt is too long: 208310 tokens > 200000"}},
         "context_length_exceeded"),
        ({"error": {"message": "no", "type": "server_error", "code": None}}, None),
        ({"error": {"message": "no", "type": "BadRequestError", "code": 400}}, None),
        ({"error": "no"}, None),
        ({"detail": "no"}, None),
        ("no", None),
        (None, None),
    ],
)  # fmt: skip
def test_codes(body, code):
    """OpenAI's `code`, Anthropic's `type`, and an overflow by what it says."""
    assert code_in(body) == code
    assert code_of(ApiError(body)) == code
    assert outcome_of(ApiError(body)) == ("error", code or f"{ApiError.__module__}.ApiError")


@pytest.mark.parametrize("code", ["", "x", "a b", "\n", "ä_error", "4xx", "x" * 65, "a/b", 7, []])
def test_what_does_not_look_like_a_code_is_none(code):
    """A sentence, or an id, is no label."""
    assert code_in({"code": code}) is None


def test_only_so_many_codes():
    """A server that makes up codes does not make up labels."""
    codes = {code_in({"code": f"code_{number}"}) for number in range(500)}

    assert len(codes - {None}) == 64
    assert code_in({"code": "code_0"}) == "code_0"


def test_an_error_of_any_kind():
    """An error whose attributes cannot be read is named by its class."""

    class Odd(Exception):  # noqa: N818
        @property
        def body(self):
            raise RuntimeError

    assert code_of(Odd()) is None
    assert code_of(ValueError()) is None


def test_an_error_of_the_application_has_the_code_of_its_cause():
    """An exception that is raised from the SDK's says why as that does."""
    own = LookupError()
    own.__cause__ = ApiError(OPENAI)

    assert outcome_of(own) == ("error", "context_length_exceeded")


def test_an_error_without_a_cause_that_counts():
    """A fallback that fails while another provider's error is handled has a reason of its own."""
    own = LookupError()
    own.__context__ = ApiError(OPENAI)
    assert outcome_of(own) == ("error", "LookupError")

    itself = ValueError()
    itself.__cause__ = itself
    assert outcome_of(itself) == ("error", "ValueError")


def test_a_time_limit_is_a_timeout():
    """Celery's is called so."""

    class SoftTimeLimitExceeded(Exception):  # noqa: N818
        pass

    assert outcome_of(SoftTimeLimitExceeded())[0] == "timeout"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["error", "type", "code", "message"]) | st.text(), inner)
    ),
)


@given(anything)
def test_any_body(body):
    """Whatever a server sends, there is a code that looks like one, or none."""
    code = code_in(body)

    assert code is None or (code.isascii() and len(code) <= 64)
