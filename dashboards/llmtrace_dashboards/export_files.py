"""Write dashboards as files for a Grafana that reads them: provisioned, or in Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from llmtrace.core.errors import ConfigError, explain_error
from llmtrace_dashboards.boards import text
from llmtrace_dashboards.rules.recording_rules import as_yaml

Form = Literal["files", "provisioning", "configmap", "sharing"]

_PROVIDER: Final = {
    "apiVersion": 1,
    "providers": [
        {
            "name": "llmtrace",
            "folder": "llmtrace",
            "type": "file",
            "allowUiUpdates": False,
            "disableDeletion": True,
            "updateIntervalSeconds": 30,
            "options": {"path": "/etc/grafana/provisioning/dashboards/llmtrace"},
        }
    ],
}
_INPUT: Final = "DS_PROMETHEUS"
_PANEL_NAMES: Final = {
    "bargauge": "Bar gauge", "heatmap": "Heatmap", "stat": "Stat", "table": "Table",
    "text": "Text", "timeseries": "Time series",
}  # fmt: skip
# What Grafana's sidecar looks for, as its Helm chart sets it.
_SIDECAR: Final = {"grafana_dashboard": "1"}
_IN_FOLDER: Final = {"grafana_folder": "llmtrace"}
_MAX_BYTES: Final = 1_000_000  # of a ConfigMap, which Kubernetes limits to 1 MiB


def files(
    dashboards: Mapping[str, Mapping[str, Any]], form: Form, namespace: str = "monitoring"
) -> dict[str, str]:
    """Return the files of an export, by their paths.

    Args:
        dashboards: by the name of their file.
        form: `files`: the dashboards as they are. `provisioning`: what goes below
            /etc/grafana/provisioning. `configmap`: for the sidecar of Grafana's Helm chart.
            `sharing`: as Grafana exports them to be shared, as on grafana.com.
        namespace: of the ConfigMaps.

    Raises:
        ConfigError: a dashboard is too large for a ConfigMap.
    """
    if form == "sharing":
        return {name: text(_shared(dashboard)) for name, dashboard in dashboards.items()}
    written = {name: text(dashboard) for name, dashboard in dashboards.items()}
    if form == "files":
        return written
    if form == "provisioning":
        return {
            "dashboards/llmtrace.yaml": as_yaml(_PROVIDER),
            **{f"dashboards/llmtrace/{name}": content for name, content in written.items()},
        }
    return {"llmtrace-dashboards.yaml": _config_maps(written, namespace)}


def _shared(dashboard: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dashboard that prompts for its data source, and says what it needs."""
    made = json.loads(json.dumps(dashboard))
    for variable in made["templating"]["list"]:
        if variable["type"] == "datasource":
            variable["current"] = {"selected": True, "text": _INPUT, "value": f"${{{_INPUT}}}"}
    drawn = {one["type"] for panel in made["panels"] for one in (panel, *panel.get("panels", ()))}
    return {
        "__inputs": [
            {
                "name": _INPUT,
                "label": "Prometheus",
                "description": "The Prometheus that has llmtrace's metrics.",
                "type": "datasource",
                "pluginId": "prometheus",
                "pluginName": "Prometheus",
            }
        ],
        "__elements": {},
        "__requires": [
            {"type": "grafana", "id": "grafana", "name": "Grafana", "version": "12.0.0"},
            {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
            *(
                {"type": "panel", "id": kind, "name": _PANEL_NAMES[kind], "version": ""}
                for kind in sorted(drawn - {"row"})
            ),
        ],
        **made,
    }


def _config_maps(written: Mapping[str, str], namespace: str) -> str:
    made = []
    for name, content in written.items():
        if len(content.encode()) > _MAX_BYTES:
            raise ConfigError(f"{name}: too large for a ConfigMap; use --format provisioning")
        made.append(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": name.removesuffix(".json"),
                    "namespace": namespace,
                    "labels": dict(_SIDECAR),
                    "annotations": dict(_IN_FOLDER),
                },
                "data": {name: content},
            }
        )
    return as_yaml(made)


def write(folder: Path, made: Mapping[str, str]) -> list[Path]:
    """Write files below a folder; return those that changed.

    Raises:
        ConfigError: they cannot be written there.
    """
    changed = []
    for name, content in made.items():
        path = folder / name
        try:
            if path.is_file() and path.read_text(encoding="utf-8") == content:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"--out {folder}: cannot write {path}: {explain_error(error)}"
            ) from error
        changed.append(path)
    return changed
