"""Is what people deploy right: does each file name what exists, and pass its own checker?"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from llmtrace.cli import make_parser
from llmtrace.core.content import NAMES
from llmtrace.core.errors import ConfigError
from llmtrace_collector.config.fields import leaves, variable
from llmtrace_collector.config.schema import PREFIX, Config, load
from llmtrace_collector.store.clickhouse_server import OLDEST

FILES = Path(__file__).parents[2] / "collectors"
OTELCOL = [FILES / "otelcol" / f"{name}.yaml" for name in ("agent", "gateway")]


def variables(text: str) -> set[str]:
    """Return the collector's variables that a text names."""
    return set(re.findall(rf"{PREFIX}_[A-Z_]+[A-Z]", text))


def test_promtool_takes_the_scrape_configuration():
    """Prometheus's own checker."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: run `make programs`")
    done = subprocess.run(
        ["promtool", "check", "config", FILES / "prometheus" / "prometheus.yaml"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_reads_where_the_collector_listens():
    """The example's target is the collector's own default."""
    config = yaml.safe_load((FILES / "prometheus" / "prometheus.yaml").read_text())
    web = load(environment={}).listen.web

    assert config["scrape_configs"][0]["static_configs"][0]["targets"] == [str(web)]
    assert config["scrape_configs"][0]["honor_labels"] is True


@pytest.mark.parametrize("path", OTELCOL, ids=lambda path: path.stem)
def test_every_part_of_a_pipeline_is_there_and_used(path: Path):
    """What a pipeline names is configured, and what is configured is in a pipeline."""
    config = yaml.safe_load(path.read_text())
    named: set[str] = set(config["service"].get("extensions", []))
    for pipeline in config["service"]["pipelines"].values():
        named |= {part for parts in pipeline.values() for part in parts}
    there = {
        part
        for room in ("receivers", "processors", "exporters", "connectors", "extensions")
        for part in config.get(room, {})
    }

    assert named == there


def test_the_agent_keeps_contents_on_its_node():
    """All that `record_content` may put on a span is deleted."""
    config = yaml.safe_load((FILES / "otelcol" / "agent.yaml").read_text())
    deleted = {one["key"] for one in config["processors"]["attributes/content"]["actions"]}

    assert deleted >= NAMES


def test_traces_stay_together():
    """All spans of a trace come to the same gateway, on the port it listens to."""
    agent, gateway = (yaml.safe_load(path.read_text()) for path in OTELCOL)
    sent = agent["exporters"]["loadbalancing"]

    assert sent["routing_key"] == "traceID"
    listens = gateway["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"]
    assert listens.endswith(f":{sent['resolver']['dns']['port']}")
    assert gateway["exporters"]["clickhouse"]["traces_table_name"] == "otel_traces"


@pytest.mark.parametrize("name", ["systemd/llmtrace-collect.service", "container/Containerfile"])
def test_every_variable_is_a_setting(name):
    """What the unit and the image set can be set."""
    known = {variable(PREFIX, key) for key, _, _ in leaves(Config)}
    named = variables((FILES / name).read_text())

    assert named
    assert named <= known


def container_settings() -> Iterator[tuple[str, str]]:
    """Yield what the image sets of the collector."""
    text = (FILES / "container" / "Containerfile").read_text()
    said = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    yield from re.findall(rf"({PREFIX}_[A-Z_]+)=(\S+)", said)


def test_the_images_settings_hold(tmp_path: Path):
    """They are read as meant, and reach beyond the container."""
    made = load(environment={**dict(container_settings()), f"{PREFIX}_DATA": str(tmp_path)})

    assert {str(made.listen.web), str(made.listen.otlp_http), str(made.listen.otlp_grpc)} == {
        "0.0.0.0:4319", "0.0.0.0:4318", "0.0.0.0:4317",
    }  # fmt: skip
    assert made.log.format == "json"


def test_the_images_ports_are_open_because_a_setting_says_so():
    """Without that, the image's own addresses are refused: they ask for no token."""
    given = dict(container_settings())
    with pytest.raises(ConfigError, match=f"{PREFIX}_LISTEN_OPEN=true"):
        load(environment={**given, f"{PREFIX}_LISTEN_OPEN": "false"})


def test_the_clickhouse_beside_it_is_new_enough():
    """The collector takes the version that `examples/compose` starts."""
    text = (FILES.parent / "examples" / "compose" / "compose.yaml").read_text()
    [image] = re.findall(r"image: clickhouse/clickhouse-server:([0-9.]+)", text)

    assert tuple(map(int, image.split("."))) >= OLDEST


@pytest.mark.parametrize("name", ["llmtrace-collect", "llmtrace-triage"])
def test_systemd_takes_the_unit(name: str, tmp_path: Path):
    """Its own checker, with the program where the unit looks for it."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = (FILES / "systemd" / f"{name}.service").read_text()
    unit = tmp_path / f"{name}.service"
    unit.write_text(text.replace("/opt/llmtrace/bin/llmtrace", shutil.which("true") or ""))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip

    assert [line for line in done.stderr.splitlines() if name in line] == []


def test_the_collectors_unit_starts_with_an_empty_file(tmp_path: Path):
    """The file must be there; it may say nothing."""
    text = (FILES / "systemd" / "llmtrace-collect.service").read_text()
    (tmp_path / "collect.yaml").touch()
    made = load(tmp_path / "collect.yaml", environment={f"{PREFIX}_DATA": str(tmp_path)})

    assert made.listen.web is not None
    assert "leave it out" not in text


def test_the_triage_unit_starts_what_there_is():
    """The command line it has, and the one in its remarks, are understood."""
    text = (FILES / "systemd" / "llmtrace-triage.service").read_text()
    text = text.replace("\n# ", "\n").replace("\\\n", " ")
    commands = re.findall(r"(?m)^ExecStart=\S+/llmtrace (.+)$", text)

    assert len(commands) == 2
    for command in commands:
        assert make_parser().parse_args(command.split()).what == "serve"
