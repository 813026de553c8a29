"""List the requests in a running collector's quarantine, and have it store them again."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from llmtrace.api_clients.collector_client import Collector
from llmtrace.core.sanitize import printable


def run(url: str, *, token_file: Path | None, replay: bool, as_json: bool) -> None:
    """Print what is in quarantine, or replay it: the command `llmtrace quarantine`.

    Raises:
        ConfigError: the address is invalid, or the file holds no token.
        SourceError: the collector does not answer.
    """
    collector = Collector(url, token_file)
    if replay:
        done = collector.post("quarantine", {})
        text = json.dumps(done) if as_json else f"replayed: {done['replayed']}"
        sys.stdout.write(f"{text}\n")
        return
    found = collector.get("quarantine")["requests"]
    if as_json:
        sys.stdout.write(f"{json.dumps(found, indent=2)}\n")
        return
    for one in found:
        at = datetime.fromtimestamp(one["at"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        line = f"{one['name']}  {at}  {one['bytes']} B  {one['spans']} spans  {one['reason']}"
        sys.stdout.write(f"{printable(line)}: {printable(one['error'])}\n")
    if not found:
        sys.stdout.write("nothing is in quarantine\n")
