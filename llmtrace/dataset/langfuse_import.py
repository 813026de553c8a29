"""Read the generations of a Langfuse project back as rows.

Those that llmtrace wrote come back whole, stages and all. Of the others, written by Langfuse's own
SDK or by another program, a row has what is known: start, end, first token, tokens, failure. Their
stages were not observed, so their time stays unattributed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from llmtrace.core.errors import DataError, SourceError, needs_extra
from llmtrace.core.row import Row
from llmtrace.core.stages import Timeline
from llmtrace.exporters.langfuse.settings import Project, read_project
from llmtrace.semconv.attributes import E2E
from llmtrace.semconv.convert import from_attributes, is_row, kind_of

_PAGE: Final = 1000  # as many as the API gives at once
_FIELDS: Final = "core,basic,time,metadata,model,usage,trace_context"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# What a server adds to the metadata of a span that was sent.
_OF_SERVER: Final = ("attributes.", "resourceAttributes.", "scope.", "scopeAttributes.")
_MAX_TEXT: Final = 200


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


def row_of(observation: Any) -> Row | None:
    """Make a row of an observation as the `langfuse` client returns it.

    Returns:
        `None` if it is not over yet, or cannot be read as a request.
    """
    metadata = dict(_flat(observation.metadata or {}))
    # Where spans come through OpenTelemetry, some servers keep all their attributes, as text.
    sent = dict(_below("attributes.", metadata))
    attributes = {
        name: value
        for name, given in {**sent, **metadata}.items()
        if (value := _as_kind(name, given)) is not None
    }
    try:
        if is_row(attributes):
            return _own(observation, attributes)
        return _other(observation, metadata)
    except (DataError, OverflowError):
        return None


def _own(observation: Any, attributes: Mapping[str, Any]) -> Row:
    return from_attributes(
        {
            **{name: one for name, one in attributes.items() if not name.startswith(_OF_SERVER)},
            **_of_trace(observation),
        },
        start=_ns(observation.start_time),
        trace_id=observation.trace_id or "",
        span_id=observation.id,
        parent_span_id=observation.parent_observation_id,
        resource=_resource(attributes),
    )


def _other(observation: Any, metadata: Mapping[str, Any]) -> Row | None:
    if observation.end_time is None:
        return None
    start, end = _ns(observation.start_time), _ns(observation.end_time)
    first = observation.completion_start_time
    ttft = None if first is None else min(max(0, _ns(first) - start), max(0, end - start))
    usage = observation.usage_details or {}
    failed = getattr(observation.level, "value", observation.level) == "ERROR"
    resource = _resource(metadata)
    status = observation.status_message
    failure = {"langfuse.status_message": status and status[:_MAX_TEXT]} if failed else {}
    return Row(
        request_id=observation.id,
        trace_id=observation.trace_id or "",
        span_id=observation.id,
        parent_span_id=observation.parent_observation_id,
        start=start,
        service=str(resource.get("service.name") or "unknown_service"),
        model=observation.model,
        route=observation.trace_name,
        version=observation.version,
        outcome="error" if failed else "success",
        prompt_tokens=_input(usage),
        cached_tokens=_first(usage, "input_cached_tokens", "input_cache_read"),
        output_tokens=_first(usage, "output"),
        timeline=Timeline(
            e2e=max(0, end - start), ttft=ttft, stream=ttft is not None, watched=False
        ),
        attributes={
            name: value
            for name, value in {**failure, **_of_trace(observation)}.items()
            if value is not None
        },
    )


def _of_trace(observation: Any) -> dict[str, Any]:
    """Return Langfuse's own fields, by the names that rows have for them."""
    environment = observation.environment
    named = {
        "user.id": observation.user_id,
        "session.id": observation.session_id,
        "tag.tags": tuple(observation.tags or ()),
        "langfuse.environment": None if environment == "default" else environment,
        "langfuse.release": observation.release,
        "langfuse.trace.name": observation.trace_name,
    }
    return {name: value for name, value in named.items() if value}


def _resource(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return dict(_below("resourceAttributes.", metadata))


def _below(prefix: str, flat: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in flat.items():
        if name.startswith(prefix):
            yield name.removeprefix(prefix), value


def _input(usage: Mapping[str, int]) -> int | None:
    """Return the tokens of the prompt: Langfuse counts cached ones apart."""
    parts = [
        count for name, count in usage.items() if name == "input" or name.startswith("input_")
    ]
    return sum(parts) if parts else None


def _first(usage: Mapping[str, int], *names: str) -> int | None:
    return next((usage[name] for name in names if name in usage), None)


def _ns(at: datetime) -> int:
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1) * 1000


def _flat(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield metadata by name; what the server has added, as an object or its text, in pieces."""
    for name, value in metadata.items():
        added = value if f"{name}." in _OF_SERVER else None
        if isinstance(added, str):
            with suppress(ValueError, RecursionError):
                added = json.loads(added)
        if isinstance(added, Mapping):
            for inner, one in added.items():
                yield f"{name}.{inner}", one
        else:
            yield name, value


def _as_kind(name: str, value: Any) -> Any:
    """Return a value as the kind that its name has in rows; metadata may come back as text."""
    kind = kind_of(name)
    if kind is None:
        return value
    if kind == "string":
        return value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return [value] if kind == "string[]" else None
    if kind == "int" and isinstance(value, float) and value.is_integer():
        return int(value)
    return value
