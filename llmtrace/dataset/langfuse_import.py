"""Read the generations of a Langfuse project back as rows, through its API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from llmtrace.core.errors import SourceError, needs_extra
from llmtrace.core.row import Row
from llmtrace.exporters.langfuse.observations import row_of
from llmtrace.exporters.langfuse.settings import Project, read_project
from llmtrace.semconv.attributes import E2E

_PAGE: Final = 1000  # as many as the API gives at once
_FIELDS: Final = "core,basic,time,metadata,model,usage,trace_context"


@dataclass(frozen=True, slots=True)
class Found:
    """The rows of a project in one window of time.

    Attributes:
        rows: by start.
        skipped: observations that are not over yet, or cannot be read as rows.
        more: whether there may be more than `limit`.
    """

    rows: tuple[Row, ...]
    skipped: int = 0
    more: bool = False


def read_rows(
    start: datetime,
    end: datetime,
    *,
    environment: str | None = None,
    limit: int = 10_000,
    project: Project | None = None,
    timeout_s: float = 30.0,
) -> Found:
    """Read the rows of a Langfuse project whose requests began in a window of time.

    Needs the extra `langfuse`, and a server with version 2 of the observations API.

    Args:
        start: the window's start, included.
        end: its end, not included.
        environment: of Langfuse's environments, only this one.
        limit: read no more observations than about that many.
        project: which; default: the one that the `LANGFUSE_*` variables name.
        timeout_s: of one request to the server.

    Raises:
        ConfigError: the package is not installed, or a variable is missing.
        SourceError: the server does not respond, rejects a request, or sends what cannot be read.
    """
    with needs_extra("reading rows from Langfuse", "langfuse", "langfuse"):
        from langfuse.api import LangfuseAPI
    import httpx

    source = read_project() if project is None else project
    with httpx.Client(timeout=timeout_s, follow_redirects=True) as http:
        api = LangfuseAPI(
            base_url=source.url,
            username=source.public_key,
            password=source.secret_key,
            x_langfuse_public_key=source.public_key,
            httpx_client=http,
            timeout=timeout_s,
        )

        def page(conditions: str, limit: int, cursor: str | None) -> Any:
            return _requested(
                lambda: api.observations.get_many(
                    fields=_FIELDS, filter=conditions, limit=limit, cursor=cursor
                ),
                source,
                timeout_s,
            )

        return _gather(page, start, end, environment, limit)


def _gather(
    page: Callable[[str, int, str | None], Any],
    start: datetime,
    end: datetime,
    environment: str | None,
    limit: int,
) -> Found:
    rows: dict[str, Row] = {}
    others: dict[str, Row] = {}
    skipped, left, more = 0, limit, False
    for conditions in _queries(start, end, environment):
        cursor, ended = None, False
        while left > 0 and not ended:
            response = page(conditions, min(_PAGE, left), cursor)
            left -= max(1, len(response.data))
            for observation in response.data:
                row = row_of(observation)
                if row is None:
                    skipped += 1
                elif row.timeline.watched:
                    rows[row.span_id] = row
                else:
                    others[row.span_id] = row
            cursor = response.meta.cursor
            ended = not cursor or not response.data
        more = more or not ended
    # A generation of Langfuse's own SDK that has a row under it is the same request.
    replaced = {*rows, *(row.parent_span_id for row in rows.values())}
    found = [*rows.values(), *(row for key, row in others.items() if key not in replaced)]
    return Found(tuple(sorted(found, key=lambda row: row.start)), skipped, more)


def _queries(start: datetime, end: datetime, environment: str | None) -> Iterator[str]:
    """Yield the filters whose responses have every row: all generations, and llmtrace's others."""
    window: list[dict[str, Any]] = [
        {"type": "datetime", "column": "startTime", "operator": operator, "value": _iso(at)}
        for operator, at in ((">=", start), ("<", end))
    ]
    if environment is not None:
        window.append(
            {"type": "string", "column": "environment", "operator": "=", "value": environment}
        )
    ours = {
        "type": "numberObject", "column": "metadata", "key": E2E, "operator": ">=", "value": 0,
    }  # fmt: skip
    for kind, *also in (("GENERATION",), ("SPAN", ours), ("AGENT", ours)):
        of_kind = {"type": "string", "column": "type", "operator": "=", "value": kind}
        yield json.dumps([*window, of_kind, *also])


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _requested(request: Callable[[], Any], project: Project, timeout_s: float) -> Any:
    """Send a request, and turn its failure into an error of ours."""
    import httpx
    import pydantic
    from langfuse.api.core.api_error import ApiError

    try:
        return request()
    except ApiError as error:
        # Its text contains headers; only the status is shown.
        raise SourceError(_refusal(project.url, error.status_code)) from None
    except httpx.TimeoutException:
        msg = f"Langfuse at {project.url} did not respond within {timeout_s:g} s"
        raise SourceError(msg) from None
    except httpx.HTTPError as error:
        msg = f"Langfuse at {project.url} cannot be reached: {type(error).__name__}: {error}"
        raise SourceError(msg) from None
    except (pydantic.ValidationError, ValueError) as error:
        msg = f"Langfuse at {project.url} sent what is not in its API: {type(error).__name__}"
        raise SourceError(msg) from None


def _refusal(url: str, status: int | None) -> str:
    where = f"Langfuse at {url} answered HTTP {status}"
    if status is not None and status < 300:  # noqa: PLR2004
        return f"{where} with something that is no list of observations"
    if status == 401:  # noqa: PLR2004
        return (
            f"{where}: it does not know these keys; LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY "
            "must be of one project on this server"
        )
    if status == 403:  # noqa: PLR2004
        return f"{where}: these keys may not read observations"
    if status == 404:  # noqa: PLR2004
        return (
            f"{where}: it has no /api/public/v2/observations, which Langfuse Cloud and servers "
            "from version 4 on have; or LANGFUSE_BASE_URL is of something else"
        )
    return where
