"""How do a real Prometheus and a real Alertmanager start, on free ports of loopback?

Each runs in a folder of its own until the block is left, and is stopped by the handle it was
started with.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.free_ports import free_port

PROMETHEUS: Final = "prometheus"
PROMTOOL: Final = "promtool"
ALERTMANAGER: Final = "prometheus-alertmanager"
_START_S: Final = 90.0
_STOP_S: Final = 10.0


def missing(*programs: str) -> str | None:
    """Return why these programs cannot be run; `None` = they can."""
    absent = [name for name in programs if shutil.which(name) is None]
    return f"{', '.join(absent)}: not installed; run `make programs`" if absent else None


@contextlib.contextmanager
def prometheus(
    config: Mapping[str, Any],
    rules: Sequence[Path | str] = (),
    *,
    flags: Sequence[str] = (),
    data: Path | None = None,
) -> Iterator[str]:
    """Run Prometheus; yield its URL once it is ready.

    Args:
        config: what its configuration file would hold, as in `scraping(...)`.
        rules: rule files, or their text.
        flags: more of its command line, as in `["--enable-feature=exemplar-storage"]`.
        data: a folder with its blocks, as `promtool tsdb create-blocks-from` makes; default: none.
    """
    with _folder() as folder:
        files = []
        for number, rule in enumerate(rules):
            text = rule.read_text(encoding="utf-8") if isinstance(rule, Path) else rule
            file = folder / f"rules-{number}.yaml"
            file.write_text(text, encoding="utf-8")
            files.append(str(file))
        file = folder / "prometheus.yaml"
        file.write_text(yaml.safe_dump({**config, **({"rule_files": files} if files else {})}))
        port = free_port()
        command = [
            PROMETHEUS,
            f"--config.file={file}",
            f"--storage.tsdb.path={data or folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--storage.tsdb.retention.time=20y",
            "--log.level=warn",
            *flags,
        ]
        with _running(command, folder, port, "/-/ready") as url:
            yield url


def scraping(
    targets: Mapping[str, str | Sequence[str]],
    *,
    every: str = "1s",
    alertmanager: str | None = None,
) -> dict[str, Any]:
    """Return a configuration that scrapes pages, and evaluates rules as often.

    Args:
        targets: by job, the URLs of metrics pages, as in `{"app": "http://127.0.0.1:9464"}`.
        every: how often, in Prometheus's notation.
        alertmanager: where alerts are sent.
    """
    jobs = []
    for job, urls in targets.items():
        for url in [urls] if isinstance(urls, str) else urls:
            parts = urllib.parse.urlsplit(url)
            found = next((one for one in jobs if one["job_name"] == job), None)
            if found is None:
                path = parts.path if parts.path not in {"", "/"} else "/metrics"
                found = {"job_name": job, "metrics_path": path, "static_configs": []}
                jobs.append(found)
            found["static_configs"].append({"targets": [parts.netloc]})
    config: dict[str, Any] = {
        "global": {
            "scrape_interval": every,
            "scrape_timeout": every,
            "evaluation_interval": every,
        },
        "scrape_configs": jobs,
    }
    if alertmanager is not None:
        where = [{"targets": [urllib.parse.urlsplit(alertmanager).netloc]}]
        config["alerting"] = {"alertmanagers": [{"static_configs": where}]}
    return config


@contextlib.contextmanager
def alertmanager(config: Mapping[str, Any]) -> Iterator[str]:
    """Run Alertmanager by itself, in no cluster; yield its URL once it is ready."""
    with _folder() as folder:
        file = folder / "alertmanager.yaml"
        file.write_text(yaml.safe_dump(dict(config)))
        port = free_port()
        command = [
            ALERTMANAGER,
            f"--config.file={file}",
            f"--storage.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
            "--log.level=warn",
        ]
        with _running(command, folder, port, "/-/ready") as url:
            yield url


def to_webhook(url: str) -> dict[str, Any]:
    """Return an Alertmanager's configuration that sends every alert there, at once."""
    return {
        "route": {
            "receiver": "webhook",
            "group_by": ["alertname", "severity"],
            "group_wait": "0s",
            "group_interval": "1s",
            "repeat_interval": "1h",
        },
        "receivers": [{"name": "webhook", "webhook_configs": [{"url": url}]}],
    }


def get(url: str, path: str, **parameters: str) -> Any:
    """Ask one of the two for JSON; its error is the assertion's message."""
    query = urllib.parse.urlencode(parameters)
    try:
        with urllib.request.urlopen(f"{url}{path}?{query}", timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            error_body = error.read().decode(errors="replace")
        raise AssertionError(f"{path}?{query}: {error.code}: {error_body}") from None


def query(url: str, expression: str) -> list[tuple[dict[str, str], float]]:
    """Return the labels and value of each series of an instant query."""
    answer = get(url, "/api/v1/query", query=expression)
    result = answer["data"]["result"]
    if answer["data"]["resultType"] == "scalar":
        return [({}, float(result[1]))]
    return [(one["metric"], float(one["value"][1])) for one in result]


def alerts(url: str) -> list[dict[str, Any]]:
    """Return the alerts that are pending or firing in a Prometheus."""
    found: list[dict[str, Any]] = get(url, "/api/v1/alerts")["data"]["alerts"]
    return found


def wait_for(
    look: Callable[[], Any], what: str, *, seconds: float = 60.0, every: float = 0.2
) -> Any:
    """Look again and again until there is something; return it."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds:g} s")
        time.sleep(every)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="llmtrace-prometheus-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _running(command: Sequence[str], folder: Path, port: int, ready: str) -> Iterator[str]:
    log = folder / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=folder
        )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"{command[0]} ended:\n{log.read_text(errors='replace')}")
        try:
            with urllib.request.urlopen(url + ready, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        wait_for(answers, f"{command[0]} is ready", seconds=_START_S, every=0.05)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
