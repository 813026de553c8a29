"""Settings for every test: properties are not timed, since other work may run at the same time."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("llmtrace", deadline=None)
settings.register_profile("fuzz", deadline=None, max_examples=5_000)  # `make fuzz`
settings.load_profile("llmtrace")

# A program that patches SDKs for good: it runs in a process of its own, and is never imported.
collect_ignore = ["langfuse_program.py"]
