"""How are dashboards drawn without a Grafana: with its own front-end packages, in Chromium?

What is real in it and what is not: docs/operate/dashboards.md. `render/` has the sources; the
packages are installed by `scripts/install_render.py`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from . import chromium

_HERE: Final = Path(__file__).parent / "render"
_SCRIPT: Final = Path(__file__).parents[2] / "scripts" / "install_render.py"
_BUILD_S: Final = 120.0
_EACH_S: Final = 120.0
# What Grafana's packages say in every page, of icons and loggers that are not here.
_HARMLESS: Final = (
    "LoggerRegistry",
    "404 /public/",
    "Failed to load resource: the server responded with a status of 404",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One dashboard to draw.

    Attributes:
        dashboard: its JSON, or the file it is in.
        start, end: the time shown, as Grafana takes it: `now-1m`, or ISO 8601.
        scrape: the data source's scrape interval, which rates depend on.
        choose: values of variables.
        png: where the picture goes; `None` = nowhere.
    """

    dashboard: Mapping[str, Any] | Path
    start: str
    end: str
    scrape: str = "15s"
    theme: str = "dark"
    width: int = 1600
    choose: Mapping[str, str] = field(default_factory=dict)
    png: Path | None = None


class Report:
    """What came of drawing one dashboard."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.found = found

    @property
    def panels(self) -> list[dict[str, Any]]:
        """What each panel asked, got and showed."""
        return list(self.found["panels"])

    def panel(self, title: str) -> dict[str, Any]:
        """Return the one panel of this title."""
        (found,) = (panel for panel in self.panels if panel["title"] == title)
        return found

    def shown(self, title: str) -> dict[str, str]:
        """Return what a panel shows, by name of the series or column: the last value's text."""
        return {value["name"]: value["shown"] for value in self.panel(title)["values"]}

    @property
    def empty(self) -> list[str]:
        """Titles of the panels that had nothing to show."""
        return [panel["title"] for panel in self.panels if panel.get("noData")]

    @property
    def problems(self) -> list[str]:
        """Everything that is wrong, in words; empty panels are in `empty`."""
        found = list(self.found["problems"])
        if self.found.get("fatal"):
            found.append(f"fatal: {self.found['fatal']}")
        if self.found.get("timedOut"):
            found.append("some panels were not done in time")
        for variable in self.found.get("variables", ()):
            if variable.get("error"):
                found.append(f"variable {variable['name']}: {variable['error']}")
        for panel in self.panels:
            name = f"panel {panel['id']} {panel['title']!r}"
            if panel.get("error"):
                found.append(f"{name}: {panel['error']}")
            elif panel.get("state") == "Error":
                found.append(f"{name}: failed")
            if panel.get("crashed"):
                found.append(f"{name}: crashed")
            if panel.get("blank"):
                found.append(f"{name}: shows nothing")
            if panel.get("drawnBy") == "unsupported":
                found.append(f"{name}: a {panel['type']} panel cannot be drawn here")
            if not panel.get("active") and not panel.get("folded"):
                found.append(f"{name}: was not drawn")
        found += [
            f"the page said: {line}" for line in self.found["console"] if not _harmless(line)
        ]
        return found


def _harmless(line: str) -> bool:
    return any(words in line for words in _HARMLESS)


def why_not() -> str | None:
    """Return why nothing can be drawn here; `None` = it can."""
    absent = [name for name in ("node", "npm") if shutil.which(name) is None]
    if chromium.find() is None:
        absent.append("chromium")
    if absent:
        return f"{', '.join(absent)}: not installed; run `make programs`"
    if not (_installer().modules_folder() / "complete").exists():
        return "Grafana's front-end packages are not installed: run scripts/install_render.py"
    return None


def draw(prometheus: str, jobs: Sequence[Job]) -> list[Report]:
    """Draw dashboards, one after the other, with the data of a Prometheus.

    Raises:
        AssertionError: nothing could be drawn at all; says what the renderer said.
    """
    modules = _installer().modules_folder()
    with tempfile.TemporaryDirectory(prefix="llmtrace-render-") as name:
        folder = Path(name)
        described = []
        for number, job in enumerate(jobs):
            source = job.dashboard
            if not isinstance(source, Path):
                source = folder / f"{number}.dashboard.json"
                source.write_text(json.dumps(job.dashboard), encoding="utf-8")
            described.append(
                {
                    "dashboard": str(source),
                    "report": str(folder / f"{number}.report.json"),
                    "png": None if job.png is None else str(job.png),
                    "from": job.start,
                    "to": job.end,
                    "scrape": job.scrape,
                    "theme": job.theme,
                    "width": job.width,
                    "expandRows": True,
                    "choose": dict(job.choose),
                }
            )
        file = folder / "jobs.json"
        file.write_text(json.dumps({"prometheus": prometheus, "jobs": described}))
        _node("render.mjs", modules, _bundle(modules), file, seconds=30 + _EACH_S * len(jobs))
        return [Report(json.loads(Path(one["report"]).read_text())) for one in described]


def _bundle(modules: Path) -> Path:
    """Return the folder with what the browser loads, made anew when a source has changed."""
    sources = sorted([*(_HERE / "src").iterdir(), _HERE / "build.mjs"])
    state = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = modules / f"bundle-{state}"
    if not (folder / "main.js").exists():
        unfinished = Path(tempfile.mkdtemp(dir=modules))
        _node("build.mjs", modules, unfinished, seconds=_BUILD_S)
        try:
            unfinished.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(unfinished)
    return folder


def _node(script: str, *arguments: Path, seconds: float) -> None:
    done = subprocess.run(
        ["node", str(_HERE / script), *map(str, arguments)],
        capture_output=True, text=True, timeout=seconds, check=False,
        env={**os.environ, "CHROMIUM": chromium.find() or ""},
    )  # fmt: skip
    if done.returncode != 0:
        raise AssertionError(f"{script}: {done.stdout}{done.stderr}")


def _installer() -> ModuleType:
    """Load the script: it alone knows where the packages go."""
    spec = importlib.util.spec_from_file_location("install_render", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(_SCRIPT.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(_SCRIPT.parent))
    return module
