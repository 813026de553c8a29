"""Read the JSON object in a file, of a bounded size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llmtrace.core.errors import DataError, SourceError, explain_error


def read_object(path: Path, max_bytes: int = 4 << 20) -> dict[str, Any]:
    """Return the JSON object that a file holds.

    Raises:
        SourceError: the file cannot be read.
        DataError: it is larger than `max_bytes`, not JSON, or no object.
    """
    try:
        if path.stat().st_size > max_bytes:
            raise DataError(f"{path}: larger than {max_bytes >> 20} MiB")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SourceError(f"{path}: cannot read it: {explain_error(error)}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: not a JSON object")
    return value
