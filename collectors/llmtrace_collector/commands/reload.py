"""Read the settings anew while the collector runs, and apply those that may change.

Certificates, tokens, targets and limits are applied; what needs a start (addresses, folders, the
store) is left as it is. Settings that are wrong change nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from llmtrace.core.errors import LlmtraceError
from llmtrace_collector.config.schema import Config, secret

logger = logging.getLogger("llmtrace.collector")


class Reloader:
    """Holds the settings in effect.

    Args:
        config: those of the start.
        read: reads them anew; `None` = they never change.
    """

    def __init__(self, config: Config, read: Callable[[], Config] | None = None) -> None:
        self.config = config
        self._read = read
        self._apply: list[Callable[[Config], None]] = []
        self._tokens = _tokens(config)

    def applies(self, apply: Callable[[Config], None]) -> None:
        """Have a function called with the settings whenever they were read anew."""
        self._apply.append(apply)

    def send_token(self) -> str | None:
        """Return what senders of OTLP must show now; `None` = nothing."""
        return self._tokens[0]

    def read_token(self) -> str | None:
        """Return what readers must show now; `None` = nothing."""
        return self._tokens[1]

    async def reload(self) -> bool:
        """Read the settings anew and apply them; return whether they were right.

        What is wrong is logged, and everything stays as it was.
        """
        if self._read is None:
            return False
        try:
            config = await asyncio.to_thread(self._read)
            tokens = _tokens(config)
        except (LlmtraceError, OSError) as error:
            logger.error("settings not reloaded, they stay as they were: %s", error)  # noqa: TRY400 - its trace helps no one
            return False
        self.config, self._tokens = config, tokens
        for apply in self._apply:
            try:
                apply(config)
            except (LlmtraceError, OSError) as error:
                logger.error("a setting stays as it was: %s", error)  # noqa: TRY400
                return False
        logger.info("settings reloaded")
        return True


def _tokens(config: Config) -> tuple[str | None, str | None]:
    return secret(config.receive.token_file), secret(config.access.token_file)
