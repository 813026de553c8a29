"""Put the dashboards into a Grafana, with its alerts; without GRAFANA_URL, into a folder.

With GRAFANA_URL, and in GRAFANA_TOKEN_FILE the file of a service account's token, this is
`llmtrace dashboards import`: run again, it changes what differs and nothing else.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from llmtrace.cli import main

url, token_file = os.environ.get("GRAFANA_URL"), os.environ.get("GRAFANA_TOKEN_FILE")
if url is not None:
    token = ["--token-file", token_file] if token_file else []
    sys.exit(main(["dashboards", "import", "--url", url, *token]))

with tempfile.TemporaryDirectory() as name:
    print("(no GRAFANA_URL: writing what a Grafana is provisioned from)")
    status = main(["dashboards", "export", "--out", name, "--format", "provisioning"])
    written = sorted(path.relative_to(name) for path in Path(name).rglob("*.json"))
    print(f"{len(written)} dashboards, such as {written[0]}")
sys.exit(status)
