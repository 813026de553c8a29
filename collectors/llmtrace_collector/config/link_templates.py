"""Read the templates of links from a request to other tools: Jaeger, Tempo, Grafana, Langfuse."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from llmtrace_collector.config.fields import Where, text

# The placeholders of a template; each is replaced by its value, escaped.
PLACES: Final = (
    "trace_id", "span_id", "request_id", "response_id", "service", "model", "replica", "start_ms",
    "end_ms",
)  # fmt: skip
_NAMED: Final = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True, slots=True)
class LinkTemplate:
    """A link: its name, and the address with `{trace_id}` and the like where values go."""

    name: str
    url: str

    def __str__(self) -> str:
        return f"{self.name}={self.url}"


def link(value: Any, where: Where) -> LinkTemplate:
    """Read `NAME=URL`. Only web addresses: a browser would run a `javascript:` URL."""
    name, _, url = text(value, where).partition("=")
    unknown = [one for one in _NAMED.findall(url) if one not in PLACES]
    is_web = url.lower().startswith(("http://", "https://"))
    if not name.strip() or not is_web or unknown:
        named = ", ".join(f"{{{one}}}" for one in PLACES)
        raise where.wrong(
            f"{value!r} is not a link such as Jaeger=https://jaeger.example/trace/{{trace_id}}, "
            f"with any of {named}"
        )
    return LinkTemplate(name.strip(), url)
