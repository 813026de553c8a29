"""Which process do exported spans and metrics come from?"""

from __future__ import annotations

import os
import uuid
from functools import lru_cache

from opentelemetry.sdk.resources import Resource


def resource(service: str) -> Resource:
    """Make the OpenTelemetry resource of one service of this process.

    `OTEL_RESOURCE_ATTRIBUTES` is part of it. A process names itself (`service.instance.id`), anew
    after a fork, unless the environment does: two that report under one name spoil each other's
    counters.
    """
    return _resource(service, os.getpid())


@lru_cache(maxsize=64)
def _resource(service: str, process: int) -> Resource:
    del process  # only a key
    made = Resource.create({"service.name": service})
    if "service.instance.id" in made.attributes:
        return made
    return made.merge(Resource({"service.instance.id": str(uuid.uuid4())}))
