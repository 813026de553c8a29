"""Do the manifests hold: by Kubernetes's schemas, with each other, and with what they run?"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

from llmtrace.cli import make_parser
from llmtrace.core.errors import ConfigError
from llmtrace_collector.config.fields import leaves, variable
from llmtrace_collector.config.schema import PREFIX, Config, exposed, load
from tests.collector.kubernetes_manifests import (
    FOLDERS,
    GENERATED,
    OPERATOR,
    ROOT,
    files,
    kustomization,
    manifests,
    pods,
)

BASE, FLEET, VLLM = FOLDERS
OURS = [(name, pod) for name, pod in pods() if name != "vllm"]
TOKEN = "0123456789abcdef-token"


@pytest.mark.parametrize("version", ["1.32", "newest"])
def test_kubernetes_takes_every_manifest(version: str):
    """Its own schemas, strict: no field that there is not."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    checked = 0
    for path, manifest in manifests():
        if not manifest["apiVersion"].startswith(OPERATOR):
            newest = kubernetes_validate.latest_version()
            wanted = newest if version == "newest" else version
            kubernetes_validate.validate(manifest, wanted, strict=True)
            assert manifest["metadata"]["name"], path
            checked += 1
    assert checked > 20
    [broken] = [one for _, one in manifests() if one["kind"] == "Deployment"]
    broken["spec"]["replicaz"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.32", strict=True)


def test_every_file_that_is_named_is_there_and_every_file_is_named():
    """But for secrets, which are made first and kept out of version control."""
    for folder in (*FOLDERS, *GENERATED):
        content = kustomization(folder)
        named = {*files(folder)}
        for one in content.get("configMapGenerator", ()):
            named |= {folder / name for name in one["files"]}
        assert [path for path in named if not path.is_file()] == []
        for path in content.get("resources", ()):
            assert path.endswith(".yaml") or (folder / path / "kustomization.yaml").is_file()
        if folder in FOLDERS:
            there = {*folder.glob("*.yaml")} - {folder / "kustomization.yaml"}
            assert there <= named
            ignored = (folder / ".gitignore").read_text() if folder != VLLM else ""
            for one in content.get("secretGenerator", ()):
                for name in one.get("files", ()):
                    assert not (folder / name).exists()
                    assert any(Path(name).match(line) for line in ignored.split()), name
    boards = {path.name for path in (ROOT / "dashboards/json").glob("*.json")}
    listed = kustomization(ROOT / "dashboards")["configMapGenerator"]
    assert {Path(one["files"][0]).name for one in listed} == boards


def generated(kind: str, *folders: Path) -> dict[str, set[str]]:
    """Return the keys of each ConfigMap or Secret that is generated."""
    found: dict[str, set[str]] = {}
    for folder in folders:
        for one in kustomization(folder).get(kind, ()):
            keys = {Path(name).name for name in one.get("files", ())}
            found[one["name"]] = keys | {
                text.partition("=")[0] for text in one.get("literals", ())
            }
    return found


def test_what_a_pod_mounts_or_reads_is_generated():
    """Config maps and secrets by their names, and the keys of them."""
    secrets = generated("secretGenerator", *FOLDERS)
    maps = generated("configMapGenerator", *FOLDERS, *GENERATED)
    used = set()
    for name, template in pods():
        spec = template["spec"]
        mounted = {one["name"] for container in spec["containers"]
                   for one in container["volumeMounts"]}  # fmt: skip
        for volume in spec["volumes"]:
            assert volume["name"] in mounted, name
            if "configMap" in volume:
                used.add(volume["configMap"]["name"])
                assert volume["configMap"]["name"] in maps
            if "secret" in volume:
                keys = {one["key"] for one in volume["secret"].get("items", ())}
                assert keys <= secrets[volume["secret"]["secretName"]]
        for container in spec["containers"]:
            for one in container.get("env", ()):
                if reference := one.get("valueFrom", {}).get("secretKeyRef"):
                    assert reference["key"] in secrets[reference["name"]]
    assert used == {"llmtrace-collect", "llmtrace-otelcol"}


def test_services_policies_and_monitors_find_their_pods():
    """By labels that pods have, and ports that they name."""
    labels = [template["metadata"]["labels"] for _, template in pods()]
    ports = {
        (template["metadata"]["labels"]["app.kubernetes.io/name"], port["name"])
        for _, template in pods()
        for container in template["spec"]["containers"]
        for port in container["ports"]
    }
    services = {m["metadata"]["name"]: m for _, m in manifests() if m["kind"] == "Service"}
    for service in services.values():
        name = service["spec"]["selector"]["app.kubernetes.io/name"]
        assert {(name, port["targetPort"]) for port in service["spec"]["ports"]} <= ports
    for _, manifest in manifests():
        if manifest["kind"] == "StatefulSet":
            assert manifest["spec"]["serviceName"] in services
        if manifest["kind"] == "NetworkPolicy":
            selected = manifest["spec"]["podSelector"]["matchLabels"]
            assert any(selected.items() <= one.items() for one in labels)
            name = selected["app.kubernetes.io/name"]
            for rule in manifest["spec"]["ingress"]:
                assert rule["from"]
                assert {(name, port["port"]) for port in rule["ports"]} <= ports
        if manifest["kind"] == "ServiceMonitor":
            [endpoint] = manifest["spec"]["endpoints"]
            wanted = manifest["spec"]["selector"]["matchLabels"].items()
            [service] = [s for s in services.values() if wanted <= s["metadata"]["labels"].items()]
            assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
            assert endpoint["honorLabels"] is True
            key = endpoint["authorization"]["credentials"]
            assert key["key"] in generated("secretGenerator", BASE)[key["name"]]
        if manifest["kind"] == "PodMonitor":
            assert all(one["honorLabels"] for one in manifest["spec"]["podMetricsEndpoints"])
    policies = [m for _, m in manifests() if m["kind"] == "NetworkPolicy"]
    guarded = {m["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for m in policies}
    assert {name for name, _ in OURS} - {"llmtrace-agent"} == guarded


@pytest.mark.parametrize(("name", "template"), OURS, ids=lambda value: str(value)[:20])
def test_no_pod_has_more_rights_than_it_needs(name, template):
    """Without root, without a writable image, within limits, watched by probes."""
    spec = template["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    reads_pods = "llmtrace-collect" if spec.get("serviceAccountName") else None
    assert spec["automountServiceAccountToken"] is (reads_pods is not None)
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert "memory" in container["resources"]["limits"]
        assert "cpu" in container["resources"]["requests"]
        if name != "llmtrace-agent":
            assert {"readinessProbe", "livenessProbe"} <= set(container)


def local(text: str, tmp_path: Path) -> str:
    """Put a text's files into a folder of this machine, with something in each."""
    for folder in ("tokens", "clickhouse", "data", "tmp"):
        (tmp_path / folder).mkdir(exist_ok=True)
    for name in ("tokens/read-token", "tokens/send-token", "clickhouse/clickhouse-password"):
        (tmp_path / name).write_text(TOKEN)
    for folder in ("tokens", "clickhouse", "data"):
        text = text.replace(f"/{folder}", f"{tmp_path}/{folder}")
    return text


def environment(name: str, tmp_path: Path, *more: dict[str, str]) -> dict[str, str]:
    """Return the variables of a workload's container, after those of its image."""
    ports = {"WEB": 4319, "OTLP_HTTP": 4318, "OTLP_GRPC": 4317}
    image = {f"{PREFIX}_LISTEN_{one}": f"0.0.0.0:{port}" for one, port in ports.items()}
    image |= {f"{PREFIX}_LISTEN_OPEN": "true", f"{PREFIX}_DATA": "/data"}
    template = dict(pods())[name]
    own = {one["name"]: one["value"] for one in template["spec"]["containers"][0].get("env", ())
           if "value" in one}  # fmt: skip
    for variables in (own, *more):
        image |= variables
    kept = {key: value.replace("$(SHARD)", "3") for key, value in image.items()}
    return {key: local(value, tmp_path) for key, value in kept.items()}


def patched() -> dict[str, str]:
    """Return the variables that the overlay of the fleet gives the collector."""
    patch = yaml.safe_load((FLEET / "reads-the-store.yaml").read_text())
    [container] = patch["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one["value"] for one in container["env"]}


def test_the_settings_hold_and_every_port_has_a_token(tmp_path: Path):
    """Of the collector, alone and in the fleet, and of those that read engines."""
    file = tmp_path / "collect.yaml"
    file.write_text(local((BASE / "collect.yaml").read_text(), tmp_path))
    alone = load(file, environment=environment("llmtrace-collect", tmp_path))
    fleet = load(file, environment=environment("llmtrace-collect", tmp_path, patched()))
    engines = load(None, environment=environment("llmtrace-engines", tmp_path))

    for config in (alone, fleet, engines):
        assert exposed(config) == []
        assert str(config.listen.web) == "0.0.0.0:4319"
    assert alone.listen.otlp_http is not None
    assert fleet.listen.otlp_http is None
    assert fleet.store.url == "https://reader@clickhouse.example:8443/llmtrace"
    assert fleet.scrape.sources() == ()
    [source] = engines.scrape.kubernetes
    assert source.selector == "llmtrace.io/engine=vllm,llmtrace.io/shard=3"
    [vllm] = [template for name, template in pods() if name == "vllm"]
    labels = {f"{key}={value}" for key, value in vllm["metadata"]["labels"].items()}
    assert {*alone.scrape.kubernetes[0].selector.split(",")} <= labels
    known = {variable(PREFIX, key) for key, _, _ in leaves(Config)}
    for variables in (patched(), environment("llmtrace-engines", tmp_path)):
        assert {name for name in variables if name.startswith(PREFIX)} <= known

    # Without its token the collector does not start.
    text = file.read_text().replace(f"access: {{token_file: {tmp_path}/tokens/read-token}}\n", "")
    file.write_text(text)
    with pytest.raises(ConfigError, match="others can reach it"):
        load(file, environment=environment("llmtrace-collect", tmp_path))


def test_the_triage_service_is_started_with_a_token():
    """Its command line is understood, and names the collector's Service."""
    [container] = dict(pods())["llmtrace-triage"]["spec"]["containers"]
    line = shlex.join([*container["command"], *container["args"]])
    options = make_parser().parse_args(shlex.split(line)[1:])

    assert options.what == "serve"
    assert str(options.listen_token_file) == "/tokens/alerts-token"
    assert options.url == "http://llmtrace-collect:4319"


def test_the_rules_are_those_of_the_budget_that_everything_has_by_default():
    """As a manifest, and as Prometheus's own files."""
    folder = ROOT / "dashboards/rules"
    for name in ("recording", "alerts"):
        manifest = yaml.safe_load((folder / f"prometheusrule-{name}.yaml").read_text())
        own = yaml.safe_load((folder / f"{name}.yaml").read_text())
        assert manifest["kind"] == "PrometheusRule"
        assert json.dumps(manifest["spec"]) == json.dumps(own)
