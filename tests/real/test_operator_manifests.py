"""Does Prometheus's operator take its manifests, by the types that it publishes?"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.collector.kubernetes_manifests import OPERATOR, manifests

from .conftest import do_without
from .drawing import _installer

CHECK = _installer().OPERATOR / "check.mjs"


def wrong_with(found: list[dict[str, Any]]) -> dict[str, str]:
    """Return what is wrong with manifests, by their kind and name."""
    folder = _installer().modules_folder(CHECK.parent)
    if not (folder / "complete").exists():
        do_without("the operator's types are not installed: run scripts/install_render.py")
    done = subprocess.run(
        ["node", CHECK, folder],
        input=json.dumps(found), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, str] = json.loads(done.stdout)
    return result


def test_the_operator_takes_them() -> None:
    """Every monitor and rule; and a wrong one is found."""
    found = [one for _, one in manifests() if one["apiVersion"].startswith(OPERATOR)]
    assert {one["kind"] for one in found} == {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    assert wrong_with(found) == {}
    [monitor, *_] = [one for one in found if one["kind"] == "PodMonitor"]
    monitor["spec"]["podMetricsEndpoints"][0]["honorLabels"] = "yes"
    [(name, words)] = wrong_with([monitor]).items()
    assert name == "PodMonitor llmtrace-applications"
    assert "honorLabels must be boolean" in words
