"""Settings for every test: properties are not timed, since other work may run beside them."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("llmtrace", deadline=None)
settings.load_profile("llmtrace")
