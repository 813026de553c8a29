"""Are the files of SQL what the modules around them fill in?"""

import re
from pathlib import Path

import pytest

from llmtrace_collector.store import sql_builder

FILES = sorted((Path(sql_builder.__file__).parent / "sql").glob("*.sql"))
PARAMETER = re.compile(r"\{(\w+)\}")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_head_of_a_file_says_what_each_parameter_is(path):
    """Who reads or runs it by hand knows what to put in, and nothing is said of what is gone."""
    text = path.read_text(encoding="utf-8")
    head = re.match(r"(?:--.*\n)+", text)[0]

    assert {*PARAMETER.findall(head)} == {*PARAMETER.findall(text[len(head) :])}


def test_every_file_is_used():
    """A file that no query is made of is deleted, and no query is made of a file that is not."""
    package = Path(sql_builder.__file__).parents[1]
    sources = [path.read_text(encoding="utf-8") for path in package.rglob("*.py")]
    used = {name for source in sources for name in re.findall(r"from_file\(\s*\"(\w+)\"", source)}

    assert used == {path.stem for path in FILES}


@pytest.mark.parametrize("given", [{}, {"rows": "x"}, {"rows": "x", "source": "y", "more": "z"}])
def test_parameters_are_those_of_the_file(given):
    """A wrong name is an error where it is written, and never a query with a hole in it."""
    with pytest.raises(KeyError, match=r"add_gateways\.sql: "):
        sql_builder.from_file("add_gateways", **given)


def test_parameters_are_filled_in_and_comments_stay_in_the_file():
    """What the engine gets is the query alone; braces of what is filled in stay as they are."""
    query = sql_builder.from_file("add_gateways", rows="SELECT {since:Int64}", source="T")

    assert query.startswith("SELECT * REPLACE (")
    assert query.endswith("FROM (\nSELECT {since:Int64}\n)")
    assert "--" not in query
