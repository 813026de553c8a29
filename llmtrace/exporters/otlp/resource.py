"""The OpenTelemetry resource: the process that exported spans and metrics come from."""

from __future__ import annotations

import os
import uuid
from functools import lru_cache
from typing import Final

from opentelemetry.sdk.resources import Resource

_INSTANCE: Final = "service.instance.id"


@lru_cache(maxsize=1)
def detect() -> tuple[Resource, int]:
    """Read `OTEL_RESOURCE_ATTRIBUTES` and what OpenTelemetry's detectors find, once.

    To be called at set-up: the detectors run in threads, and at exit no thread can be started.

    Returns:
        What was found, and the process it was found in.
    """
    return Resource.create(), os.getpid()


def resource(service: str) -> Resource:
    """Make the OpenTelemetry resource of one service of this process.

    A process names itself (`service.instance.id`), anew after a fork, unless the environment does:
    two that report under one name spoil each other's counters.
    """
    return _resource(service, os.getpid())


@lru_cache(maxsize=64)
def _resource(service: str, process: int) -> Resource:
    found, finder = detect()
    made = found.merge(Resource({"service.name": service}))
    configured = f"{_INSTANCE}=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if configured or (process == finder and _INSTANCE in made.attributes):
        return made
    return made.merge(Resource({_INSTANCE: str(uuid.uuid4())}))
