"""What does Langfuse call what it reads off a span? As its own SDK does, version 5."""

from __future__ import annotations

from typing import Final

TYPE: Final = "langfuse.observation.type"
LEVEL: Final = "langfuse.observation.level"
STATUS_MESSAGE: Final = "langfuse.observation.status_message"
METADATA: Final = "langfuse.observation.metadata"
INPUT: Final = "langfuse.observation.input"
OUTPUT: Final = "langfuse.observation.output"
MODEL: Final = "langfuse.observation.model.name"
USAGE: Final = "langfuse.observation.usage_details"
COMPLETION_START: Final = "langfuse.observation.completion_start_time"
TAGS: Final = "langfuse.trace.tags"
ENVIRONMENT: Final = "langfuse.environment"
RELEASE: Final = "langfuse.release"
VERSION: Final = "langfuse.version"
APP_ROOT: Final = "langfuse.internal.is_app_root"

# Not Langfuse's own, but read by it.
USER: Final = "user.id"
SESSION: Final = "session.id"

# Observations that it counts tokens and costs of. On others they would be counted twice.
GENERATIONS: Final = frozenset({"generation", "embedding"})
