"""Convert OTLP into rows of `otel_traces` in SQL, without parsing any span in Python.

ClickHouse reads Protobuf itself, into a table that keeps nothing and is nested like the messages;
from there a materialised view fills `otel_traces`. That table is the same as OpenTelemetry's
ClickHouse exporter makes, so that readers of either can read both.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from llmtrace_collector.store.sql_builder import from_file

# The messages of opentelemetry/proto as far as they are stored. Unknown fields are skipped.
PROTO: Final = files(__package__).joinpath("otlp_to_spans.proto").read_text(encoding="utf-8")
MESSAGE: Final = "Request"
INCOMING_COLUMNS: Final = from_file(
    "otlp_columns",
    attributes=from_file("otlp_attributes_type", scalar=from_file("otlp_scalar_type")),
)
TRACES_COLUMNS: Final = from_file("otel_traces_columns")
# A fifth of the work of an insert: these indexes are made as parts are merged, and the newest parts,
# which lack them, are small. The index of trace ids is made at once.
INDEXED_LATER: Final = (
    "idx_res_attr_key", "idx_res_attr_value", "idx_span_attr_key", "idx_span_attr_value",
)  # fmt: skip

# A sender's clock may be wrong. A span from the future, or from more than a year ago, is stored at
# the time it arrived: each odd day would become a folder on disk.
_FUTURE_DAYS: Final = 1
_PAST_DAYS: Final = 400


def _map(attributes: str) -> str:
    return from_file(
        "otlp_map",
        attributes=attributes,
        member_json=from_file("otlp_json", value="x"),
        pair_json=from_file("otlp_json", value="x.value"),
    )


def traces_select(incoming: str) -> str:
    """Return the query that converts what was read from OTLP into rows of `otel_traces`."""
    return from_file(
        "otlp_spans",
        incoming=incoming,
        earliest=str(_PAST_DAYS),
        latest=str(_FUTURE_DAYS),
        resource=_map("r.resource.attributes"),
        attributes=_map("s.attributes"),
        of_event=_map("e.attributes"),
        of_link=_map("l.attributes"),
    )
