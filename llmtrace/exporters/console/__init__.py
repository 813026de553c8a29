"""Rows on the terminal."""

from __future__ import annotations

from llmtrace.exporters.console.sink import console_sink, waterfall

__all__ = ["console_sink", "waterfall"]
