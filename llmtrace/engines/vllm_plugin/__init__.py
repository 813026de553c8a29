"""A vLLM plugin that exports the figures of each request, where responses do not carry them.

vLLM loads `StatLogger` by the entry point `vllm.stat_logger_plugins`, in each API server. With
`LLMTRACE_VLLM_PLUGIN=1` it sends a span for every finished request by OTLP; without, it does
nothing. See docs/operate/vllm.md.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    # Made when vLLM requests it: the class has a base of vLLM's, which is nowhere else.
    if name == "StatLogger":
        from llmtrace.engines.vllm_plugin.stat_logger import stat_logger_class

        return stat_logger_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
