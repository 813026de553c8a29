"""Is every event one line, that says what happened and repeats nothing that came?"""

from __future__ import annotations

import io
import json
import logging

from llmtrace_collector.commands.logs import logging_to

logger = logging.getLogger("llmtrace.collector.test")


def logged(form: str, level: str = "info") -> list[str]:
    """Return the lines that some events make."""
    out = io.StringIO()
    with logging_to(out, form, level):
        logger.info("it is %s", "well")
        logger.debug("not said")
        logger.warning("two\nlines, ä")
        try:
            raise ValueError("secret of a request")
        except ValueError:
            logger.exception("it broke")
        logging.getLogger("uvicorn.access").info("GET /")
    logger.info("not here any more")
    return out.getvalue().splitlines()


def test_text():
    """Time, level, who, what; a line break cannot make a line of its own."""
    well, two, broke = logged("text")

    assert well[10:11] == "T"
    assert well.endswith("Z INFO    llmtrace.collector.test: it is well")
    assert "two\\nlines, \\xe4" in two
    assert "it broke: ValueError in " in broke


def test_json():
    """The same as objects."""
    well, two, broke = (json.loads(line) for line in logged("json"))

    assert well["level"] == "info"
    assert well["message"] == "it is well"
    assert two["message"] == "two\nlines, ä"
    assert broke["error"].startswith("ValueError in ")


def test_what_was_raised_is_not_quoted():
    """Its text may be what a client sent."""
    assert not any("secret" in line for form in ("text", "json") for line in logged(form))


def test_only_from_a_level_on():
    """And everything below if asked."""
    assert len(logged("text", "error")) == 1
    assert any("not said" in line for line in logged("text", "debug"))
