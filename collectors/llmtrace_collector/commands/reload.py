"""Read the settings again while the collector runs, and apply those that may change.

Certificates, tokens, targets and limits are applied; what needs a restart (addresses, folders, the
store) stays as it is. Invalid settings change nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from operator import attrgetter
from typing import Final

from llmtrace.api_clients.http_client import read_token
from llmtrace.core.errors import LlmtraceError
from llmtrace_collector.config.fields import leaves
from llmtrace_collector.config.schema import Config

logger = logging.getLogger("llmtrace.collector")

# Settings that are applied while the collector runs; the others need a restart.
_APPLIED: Final = frozenset(
    {
        "links", "access.certificate", "access.key", "access.token_file", "receive.token_file",
        "receive.body_bytes", "receive.inflated_bytes", "receive.expanded_bytes",
        "receive.memory_bytes", "spool.sync", "spool.disk_bytes", "spool.free_bytes",
        "spool.quarantine_bytes", "scrape.targets", "scrape.files", "scrape.http", "scrape.dns",
        "scrape.kubernetes",
    }
)  # fmt: skip


class Reloader:
    """Holds the settings in effect.

    Args:
        config: the settings at the start.
        read: reads them again; `None` = they never change.
    """

    def __init__(self, config: Config, read: Callable[[], Config] | None = None) -> None:
        self.config = self._began = config
        self._read = read
        self._apply: list[Callable[[Config], None]] = []
        self._tokens = _tokens(config)

    def applies(self, apply: Callable[[Config], None]) -> None:
        """Register a function that is called with the new settings after each reload."""
        self._apply.append(apply)

    def send_token(self) -> str | None:
        """Return the token that senders of OTLP must show now; `None` = none."""
        return self._tokens[0]

    def read_token(self) -> str | None:
        """Return the token that readers must show now; `None` = none."""
        return self._tokens[1]

    async def reload(self) -> bool:
        """Read the settings again and apply them; return whether they are valid.

        If they are not, that is logged and everything stays as it was.
        """
        if self._read is None:
            return False
        try:
            config = await asyncio.to_thread(self._read)
            tokens = _tokens(config)
        except (LlmtraceError, OSError) as error:
            logger.error("settings not reloaded, they stay as they were: %s", error)  # noqa: TRY400 - a trace would not help
            return False
        self.config, self._tokens = config, tokens
        is_applied = True
        for apply in self._apply:
            try:
                apply(config)
            except (LlmtraceError, OSError) as error:
                logger.error("a setting stays as it was: %s", error)  # noqa: TRY400
                is_applied = False
        if is_applied:
            logger.info("settings reloaded")
        names = {".".join(key) for key, _, _ in leaves(Config)} - _APPLIED
        changed = [n for n in sorted(names) if attrgetter(n)(config) != attrgetter(n)(self._began)]
        if changed:
            logger.warning("changed, but applied only after a restart: %s", ", ".join(changed))
        return is_applied


def _tokens(config: Config) -> list[str | None]:
    """Return the tokens that senders and readers must show."""
    files = (config.receive.token_file, config.access.token_file)
    return [None if file is None else read_token(file, "token_file") for file in files]
