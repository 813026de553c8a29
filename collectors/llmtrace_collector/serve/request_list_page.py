"""Draw the request list: its filters, a line per request with a bar of stages, and links."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from llmtrace.core.row import OUTCOMES, TURN
from llmtrace.core.stages import PARTITION
from llmtrace_collector.serve import page_frame as frame
from llmtrace_collector.serve.request_list_query import address, earlier
from llmtrace_collector.store.request_list import CHOSEN_BY, KINDS, SORTS, ListQuery, Place

# The columns of CSV, in this order; durations in seconds, empty = not reported.
COLUMNS: Final = (
    "start", "trace_id", "span_id", "service", "operation", "agent",
    "model", "route", "tenant", "outcome", "error_type", "e2e_s", "ttft_s", "tpot_s",
    *(f"{stage}_s" for stage in PARTITION),
)  # fmt: skip
_WORDS: Final = ("route", "service", "tenant")
_SPANS: Final = ("15m", "1h", "6h", "24h", "7d")
# A spreadsheet would run a text that begins with one of these.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListView:
    """What a page of the list shows.

    Attributes:
        query: of the list.
        given: the parameters of the address, as they were written.
        rows: in the order of the page, as `Row.as_dict` has them.
        following: where the next page begins; `None` = there is none.
        total: number on all pages; an upper bound, unless this page has them all.
        choices: suggested values of the filters.
    """

    query: ListQuery
    given: Mapping[str, str]
    rows: Sequence[Mapping[str, Any]]
    following: Place | None
    total: int
    choices: Mapping[str, Sequence[str]]

    @property
    def is_all(self) -> bool:
        """Whether these rows are all there are."""
        return self.following is None and self.query.after is None


def list_html(view: ListView) -> str:
    """Return the HTML body of the request list, filters included."""
    return (
        f"{frame.navigation()}<main><h1>Requests</h1>"
        f"<section>{_form(view)}{_spans(view)}</section>"
        f"<section>{_count(view)}{frame.legend() if view.rows else ''}{_table(view)}"
        f'<p class="pages">{" ".join(_links(view))}</p></section></main>'
    )


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows as CSV. A text that a spreadsheet would take for a formula is quoted."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for row in rows:
        values = (row.get(name) for name in COLUMNS)
        writer.writerow(f"'{one}" if isinstance(one, str) and one.startswith(_FORMULA) else one
                        for one in values)  # fmt: skip
    return out.getvalue()


def _form(view: ListView) -> str:
    given = view.given

    def field(name: str, label: str, more: str = "") -> str:
        value = frame.text(given.get(name, ""))
        return f'<label>{label} <input name="{name}" value="{value}"{more}></label>'

    words = "".join(
        field(name, name, f' list="known-{name}"') + _known(name, view.choices.get(name, ()))
        for name in CHOSEN_BY
        if name != "outcome"
    )
    return (
        '<form method="get" action="requests" role="search">'
        + field("start", "from", ' placeholder="-1h"')
        + field("end", "to", ' placeholder="now"')
        + words
        + _select("outcome", "outcome", given, {"": "any", **{one: one for one in OUTCOMES}})
        + field("slower_than", "slower than, s", ' inputmode="decimal"')
        + _select("kind", "show", given, {kind: kind for kind in KINDS})
        + _select("sort", "sort by", given, {name: _sort_words(name) for name in SORTS})
        + field("id", "trace, request or response id")
        + "<button>Show</button></form>"
    )


def _known(name: str, values: Sequence[str]) -> str:
    options = "".join(f'<option value="{frame.text(value)}">' for value in values)
    return f'<datalist id="known-{name}">{options}</datalist>'


def _select(name: str, label: str, given: Mapping[str, str], options: Mapping[str, str]) -> str:
    chosen = given.get(name, "")
    shown = "".join(
        f'<option value="{value}"{" selected" if value == chosen else ""}>{words}</option>'
        for value, words in options.items()
    )
    return f'<label>{label} <select name="{name}">{shown}</select></label>'


def _sort_words(name: str) -> str:
    return "newest" if name == "start" else f"longest {name}"


def _spans(view: ListView) -> str:
    links = " ".join(
        f'<a href="?{frame.text(address(view.query, start=at, end=None, after=None, id=None))}">'
        f"{span}</a>"
        for at, span in ((f"-{span}", span) for span in _SPANS)
    )
    return f'<p class="pages"><span class="soft">The last</span> {links}</p>'


def _count(view: ListView) -> str:
    query, shown = view.query, len(view.rows)
    several = "" if view.total == 1 else "s"
    kinds = ("request", "turn") if query.kind == "all" else (query.kind.removesuffix("s"),)
    what = " or ".join(f"{kind}{several}" for kind in kinds)
    number = f"{'' if view.is_all else 'up to '}{view.total:,} {what}"
    if query.name is not None:
        when = f"with the id {frame.text(query.name)}"
    else:
        when = f"from {frame.moment(query.start_ns)} to {frame.moment(query.end_ns)}"
    known = f" whose {query.sort} is known" if query.sort != "start" else ""
    part = f", {shown} shown" if shown < view.total else ""
    return f"<p>{number}{known}{part}, {_sort_words(query.sort)} first, {when}</p>"


def _table(view: ListView) -> str:
    if not view.rows:
        more = "Take a longer time, or fewer filters." if view.is_all else "These were all."
        return f"<p>None. {more}</p>"
    extra = view.query.sort if view.query.sort in {*PARTITION, "tpot"} else None
    longest = max(float(row.get("e2e_s") or 0) for row in view.rows)
    lines = "".join(_line(row, longest, extra) for row in view.rows)
    stages = f"stages, {frame.ms(longest)} wide"
    numbers = [f">{name}" for name in ("e2e", "ttft", *([extra] if extra else []))]
    return frame.table(("began", *numbers, stages, "outcome", "model", *_WORDS), lines)


def _line(row: Mapping[str, Any], longest: float, extra: str | None) -> str:
    href = f"requests/{quote(row['trace_id'])}?span={quote(row['span_id'])}"
    name = row.get("agent") if row.get("operation") == TURN else row.get("model")
    kind = "turn " if row.get("operation") == TURN else ""
    outcome = row.get("outcome", "success")
    bad = "" if outcome == "success" else " bad"
    ended = frame.text(" ".join(filter(None, (outcome, row.get("error_type")))))
    stages = {stage: float(row.get(f"{stage}_s") or 0) for stage in PARTITION}
    words = "".join(
        f'<td class="name"{_titled(row.get(field))} data-of="{field}">{_word(row.get(field))}</td>'
        for field in _WORDS
    )
    numbers = "".join(
        f'<td class="n" data-of="{figure}">{frame.ms(row.get(f"{figure}_s"))}</td>'
        for figure in ("e2e", "ttft", *([extra] if extra else []))
    )
    return (
        f'<tr><td><a href="{href}">{frame.moment(int(row["start"]))}</a></td>{numbers}'
        f'<td class="wide">{frame.stage_bar(stages, longest)}</td>'
        f'<td class="name{bad}" title="{ended}">{ended}</td>'
        f'<td class="name"{_titled(name)}>{kind}{_word(name)}</td>{words}</tr>'
    )


def _word(value: object) -> str:
    return frame.UNKNOWN if value in (None, "") else frame.text(value)


def _titled(value: object) -> str:
    return f' title="{frame.text(value)}"' if value else ""


def _links(view: ListView) -> Iterator[str]:
    query = view.query
    if view.following is not None:
        place = ":".join(map(str, view.following))
        later = frame.text(address(query, after=place))
        yield f'<a rel="next" href="?{later}">Next {query.limit}</a>'
    if query.after is not None:
        yield f'<a href="?{frame.text(address(query, after=None))}">First page</a>'
    if query.name is None:
        yield f'<a href="?{frame.text(earlier(query, 1))}">Earlier</a>'
        yield f'<a href="?{frame.text(earlier(query, -1))}">Later</a>'
    yield f'<a href="?{frame.text(address(query))}">Link to this</a>'
    yield f'<a href="requests.csv?{frame.text(address(query))}">CSV</a>'
    yield f'<a href="requests.json?{frame.text(address(query))}">JSON</a>'
