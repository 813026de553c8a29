"""The manifests of collectors/kubernetes, and of the folders that its kustomizations name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT / "collectors/kubernetes" / name for name in ("base", "fleet", "vllm")]
GENERATED = [ROOT / "dashboards", ROOT / "collectors/otelcol"]
OPERATOR = "monitoring.coreos.com"


def kustomization(folder: Path) -> dict[str, Any]:
    """Return the kustomization of a folder."""
    content: dict[str, Any] = yaml.safe_load((folder / "kustomization.yaml").read_text())
    return content


def files(folder: Path) -> list[Path]:
    """Return the files of manifests that a kustomization names, and of patches."""
    named = kustomization(folder)
    paths = [*named.get("resources", ()), *(one["path"] for one in named.get("patches", ()))]
    return [folder / path for path in paths if path.endswith(".yaml")]


def manifests() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield each manifest with its file; of patches none, which are parts of one."""
    for folder in (*FOLDERS, *GENERATED):
        patches = {one["path"] for one in kustomization(folder).get("patches", ())}
        for path in files(folder):
            if path.name not in patches:
                for content in yaml.safe_load_all(path.read_text()):
                    yield path, content


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each workload, and the specification of its pods."""
    for _, manifest in manifests():
        if "template" in manifest.get("spec", {}):
            yield manifest["metadata"]["name"], manifest["spec"]["template"]
