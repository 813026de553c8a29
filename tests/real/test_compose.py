"""Does examples/compose hold together, as far as that can be tried without Docker?

The Compose file against its specification's schema; Prometheus and Alertmanager with the very
files it mounts, beside a real `llmtrace collect` with its settings.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import yaml

from llmtrace.cli import make_parser
from tests.support.free_ports import free_port

from .conftest import do_without
from .prometheus import (
    ALERTMANAGER,
    PROMETHEUS,
    PROMTOOL,
    alertmanager,
    alerts,
    get,
    missing,
    prometheus,
    query,
    wait_for,
)

COMPOSE: Final = Path(__file__).parents[2] / "examples" / "compose"
BIN: Final = Path(sys.executable).parent


def compose() -> dict[str, Any]:
    """Return the Compose file."""
    content: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    return content


def mounted() -> Iterator[tuple[str, Path, str]]:
    """Yield each file or folder that a service mounts from here: service, path, where to."""
    for name, service in compose()["services"].items():
        for volume in service.get("volumes", ()):
            source, target = volume.split(":")[:2]
            if source.startswith("."):
                yield name, (COMPOSE / source).resolve(), target


def test_the_file_is_what_the_specification_says():
    """Against the schema of the Compose specification."""
    done = subprocess.run(
        [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec",
         COMPOSE / "compose.yaml"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_mounted_is_there():
    """Files of the project are mounted, not copied; all of them exist, and are read only."""
    found = {(name, path.name) for name, path, _ in mounted() if path.exists()}

    assert len(found) == len(list(mounted())) == 10
    assert {("prometheus", "alerts.yaml"), ("grafana", "json")} <= found
    assert list((COMPOSE / "../../dashboards/json").resolve().glob("llmtrace-*.json"))
    services = compose()["services"]
    dockerfile = services["collect"]["build"]["dockerfile"]
    assert (COMPOSE / services["collect"]["build"]["context"] / dockerfile).exists()


def test_what_is_run_is_there_and_understood():
    """Programs of the mounted folder exist; the triage's command line is parsed."""
    services = compose()["services"]
    for name in ("simulated", "users"):
        [mount] = services[name]["volumes"]
        source, target, _ = mount.split(":")
        program = services[name]["entrypoint"][1]
        assert (COMPOSE / source / Path(program).relative_to(target)).is_file()
    triage = services["triage"]
    options = make_parser().parse_args([*triage["entrypoint"][1:], *triage["command"]])
    assert (options.what, str(options.listen_token_file)) == ("serve", "/tokens/alerts")
    assert all("profiles" in services[name] for name in ("vllm", "dcgm", "simulated", "users"))
    named = {
        volume.split(":")[0] for one in services.values() for volume in one.get("volumes", ())
    }
    assert {name for name in named if not name.startswith(".")} <= set(compose()["volumes"])


def test_the_simulated_variant_has_requests(tmp_path):
    """Its engine and its users run as they are, with no GPU."""
    port = free_port()
    folder = COMPOSE / "simulated"
    address = f"127.0.0.1:{port}"
    with subprocess.Popen([sys.executable, folder / "engine.py", address], cwd=tmp_path) as engine:
        try:

            def up() -> bool:
                assert engine.poll() is None
                with contextlib.suppress(OSError):
                    return bool(urllib.request.urlopen(f"http://{address}/health", timeout=5))
                return False

            wait_for(up, "the engine is up", seconds=60)
            done = subprocess.run(
                [sys.executable, folder / "users.py", "3"],
                env={**os.environ, "OPENAI_BASE_URL": f"http://{address}/v1",
                     "OPENAI_API_KEY": "none", "LLMTRACE_EXPORTERS": "console"},
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
        finally:
            engine.terminate()
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("llmtrace-sim  chat  success") == 3, done.stderr


def test_only_this_machine_reaches_it():
    """Every published port is on loopback."""
    ports = [port for one in compose()["services"].values() for port in one.get("ports", ())]

    assert len(ports) >= 7
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_services_speak_to_services_that_are_there():
    """Each address in the mounted settings names a service, or one's own loopback."""
    services = set(compose()["services"])
    for _, path, _ in mounted():
        files = [path] if path.is_file() else list(path.rglob("*.yaml"))
        for file in files:
            text = re.sub(r"#.*", "", file.read_text())
            hosts = set(re.findall(r"https?://([a-z][\w.-]*):\d+", text))
            hosts |= set(re.findall(r'targets: \["([a-z]\w*):\d+"\]', text))
            assert hosts - {"localhost"} <= services, file


@contextlib.contextmanager
def collecting(folder: Path) -> Iterator[str]:
    """Run the collector with the settings that are mounted; yield where it listens."""
    port = free_port()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LLMTRACE_")}
    environment |= {
        "LLMTRACE_COLLECT_DATA": str(folder / "data"),
        "LLMTRACE_COLLECT_LISTEN_WEB": f"127.0.0.1:{port}",
        "LLMTRACE_COLLECT_LISTEN_OTLP_HTTP": "127.0.0.1:0",
        "LLMTRACE_COLLECT_LISTEN_OTLP_GRPC": "off",
        "LLMTRACE_COLLECT_STORE_URL": "",
    }
    log = folder / "collect.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [BIN / "llmtrace", "collect", "--config", COMPOSE / "collect.yaml"],
            env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder,
        )  # fmt: skip

    def ready() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5))
        return False

    try:
        wait_for(ready, "the collector is ready", seconds=120)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_the_same_configuration_runs_on_the_real_programs(tmp_path):
    """Every rule evaluates, the collector is scraped, and the engine that is not there pages."""
    if reason := missing(PROMETHEUS, ALERTMANAGER, PROMTOOL):
        do_without(reason)
    rules = [path for name, path, _ in mounted() if name == "prometheus" and "rules" in str(path)]
    config = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text())
    manager_config = yaml.safe_load((COMPOSE / "alertmanager.yaml").read_text())
    (tmp_path / "rules").mkdir()
    for path in rules:
        shutil.copy(path, tmp_path / "rules")
    shutil.copy(COMPOSE / "prometheus.yaml", tmp_path)
    checked = subprocess.run(
        [PROMTOOL, "check", "config", tmp_path / "prometheus.yaml"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr

    with collecting(tmp_path) as collector, alertmanager(manager_config) as manager:
        # Addresses are local, and alerts do not wait half a minute; all else is unchanged.
        del config["rule_files"]
        config["global"] = dict.fromkeys(
            ("scrape_interval", "scrape_timeout", "evaluation_interval"), "1s"
        )
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [urlsplit(collector).netloc]
        config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [
            urlsplit(manager).netloc
        ]
        often = re.compile(r"^(\s+(?:interval|for):) \w+$", re.MULTILINE)
        quick = [often.sub(r"\1 1s", path.read_text()) for path in rules]
        with prometheus(config, quick) as url:
            wait_for(
                lambda: query(url, 'up{job="llmtrace-collector"} == 1'), "the collector is scraped"
            )

            def evaluated() -> list[dict[str, Any]]:
                groups = get(url, "/api/v1/rules")["data"]["groups"]
                found = [rule for group in groups for rule in group["rules"]]
                return found if all(rule["health"] != "unknown" for rule in found) else []

            every = wait_for(evaluated, "every rule is evaluated")
            assert [rule for rule in every if rule["health"] != "ok"] == []
            assert len(every) > 50
            wait_for(
                lambda: [one for one in alerts(url) if one["state"] == "firing"
                         and one["labels"]["alertname"] == "LlmtraceEngineDown"],
                "the engine is missed",
            )  # fmt: skip
            active_alerts = wait_for(
                lambda: get(manager, "/api/v2/alerts", filter='alertname="LlmtraceEngineDown"'),
                "Alertmanager has the alert",
            )
    assert active_alerts[0]["labels"]["instance"] == "vllm:8000"
    assert active_alerts[0]["receivers"] == [{"name": "triage"}]
    assert json.dumps(active_alerts[0]["annotations"]).count("llmtrace triage --after") == 1


@pytest.mark.parametrize("name", ["datasources/prometheus.yaml", "dashboards/llmtrace.yaml"])
def test_what_grafana_is_given(name):
    """Provisioning files of version 1; the dashboards are where they are mounted to."""
    content = yaml.safe_load((COMPOSE / "grafana" / "provisioning" / name).read_text())

    assert content["apiVersion"] == 1
    if "providers" in content:
        where = {target for service, _, target in mounted() if service == "grafana"}
        assert content["providers"][0]["options"]["path"] in where
    else:
        assert content["datasources"][0]["url"] == "http://prometheus:9090"
