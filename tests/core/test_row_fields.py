"""A field of a row is declared in one place, and is everywhere."""

from __future__ import annotations

import subprocess
import sys

# A program whose `row_fields.py` has a field more.
ADDED = """
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location

class Loader(SourceFileLoader):
    def get_data(self, path):
        data = super().get_data(path)
        first = b"    preemptions: int"
        assert path.endswith(".pyc") or data.count(first) == 1
        return data.replace(first, DECLARED + first)

class Finder:
    def find_spec(name, path, target=None):
        if name == "llmtrace.core.row_fields":
            file = path[0] + "/row_fields.py"
            return spec_from_file_location(name, file, loader=Loader(name, file))

DECLARED = b'    cosmic_rays: int | None = wired("llmtrace.cosmic_rays", "bits turned")\\n'
DECLARED += b'    eclipse_ns: int | None = wired("llmtrace.eclipse", "start to darkness")\\n'
sys.dont_write_bytecode = True
Loader.get_code = lambda self, name: self.source_to_code(self.get_data(self.path), self.path)
sys.meta_path.insert(0, Finder)

import llmtrace
from llmtrace.core.row import from_dict
from llmtrace.dataset.columns import from_rows
from llmtrace.semconv.convert import from_attributes, kind_of, to_attributes
from llmtrace.semconv.docs import page
from llmtrace.testing import make_row
from llmtrace_collector.store import tables
from llmtrace_collector.store.rows_sql import COLUMNS

row = make_row(cosmic_rays=3, eclipse_ns=2_000_000_000)
flat = row.as_dict()
assert (flat["cosmic_rays"], flat["eclipse_s"]) == (3, 2.0)
assert from_dict(flat) == row
[again] = llmtrace.read_rows([flat])
assert again == row

attributes = to_attributes(row)
assert (attributes["llmtrace.cosmic_rays"], attributes["llmtrace.eclipse"]) == (3, 2.0)
assert (kind_of("llmtrace.cosmic_rays"), kind_of("llmtrace.eclipse")) == ("int", "seconds")
back = from_attributes(attributes, start=1, trace_id=row.trace_id, span_id=row.span_id)
assert (back.cosmic_rays, back.eclipse_ns) == (3, 2_000_000_000)

columns = from_rows([row])
assert (columns.numbers["cosmic_rays"][0], columns.numbers["eclipse_s"][0]) == (3.0, 2.0)
try:
    import pyarrow
except ImportError:
    pass
else:
    table = llmtrace.read_rows([flat]).to_arrow()
    assert (table["cosmic_rays"][0].as_py(), table["eclipse_s"][0].as_py()) == (3, 2.0)

assert "| `llmtrace.cosmic_rays` | int | `cosmic_rays` | bits turned |" in page()
assert "`llmtrace.eclipse`" in page()
assert {"cosmic_rays", "eclipse_ns"} <= {*COLUMNS}
assert "cosmic_rays" in tables.request_columns() and "eclipse_ns" in tables.request_columns()
"""


def test_a_field_is_declared_once_and_found_everywhere():
    """In JSON, on the span, in columns and tables, in the store and in the documents."""
    done = subprocess.run(
        [sys.executable, "-c", ADDED], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
