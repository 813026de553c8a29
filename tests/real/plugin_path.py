"""How does a vLLM get our plugin in a test? As after `pip install`, but for the installing.

A folder for `PYTHONPATH` with the package and the metadata that vLLM looks entry points up in, so
that the environment that holds vLLM, which several checkouts may share, stays as it is.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from llmtrace.engines.local_vllm.install import VERSION

ROOT = Path(__file__).parents[2]


def make_plugin_path(folder: Path) -> Path:
    """Put the package of this checkout and its entry points into a folder, and return it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{point} = {value}" for point, value in points.items())]
    info = _metadata(folder, project["name"], project["version"])
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "llmtrace").symlink_to(ROOT / "llmtrace")
    # `vllm serve` asks for the version of a distribution that the one for CPUs is not called.
    _metadata(folder, "vllm", f"{VERSION}+cpu")
    return folder


def _metadata(folder: Path, name: str, version: str) -> Path:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(text, encoding="utf-8")
    return info
