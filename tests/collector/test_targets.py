"""Are lists of targets read as Prometheus reads them, and errors in them reported?"""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtrace.core.errors import ConfigError
from llmtrace_collector.scrape.fetch import checked, shown
from llmtrace_collector.scrape.targets import FileTargets, Target, parse_groups


def test_hosts_and_addresses():
    """A host has its page at /metrics unless a label says otherwise; an address says it all."""
    found = parse_groups(
        [
            {"targets": ["a:8000", "https://b/x?k=v"], "labels": {"env": "prod", "__meta_x": "y"}},
            {"targets": ["c:1"], "labels": {"__scheme__": "https", "__metrics_path__": "/m"}},
            {"targets": ["a:8000"]},
        ],
        "here",
    )

    assert found == (
        Target("http://a:8000/metrics", (("env", "prod"),)),
        Target("https://b/x?k=v", (("env", "prod"),)),
        Target("https://c:1/m"),
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, 'must be a list of {"targets"'),
        ([{"targets": ["a:1"]}, []], r'\[1\]: "targets" must be a list of texts'),
        ([{"targets": "a:1"}], r'"targets" must be a list of texts'),
        ([{"targets": [1]}], r'"targets" must be a list of texts'),
        ([{"targets": [], "labels": []}, {"targets": [], "labels": [1]}], r'\[1\]: "labels" must'),
        ([{"targets": [], "labels": {"a-b": "c"}}], "'a-b' is not the name of a label"),
        ([{"targets": [], "labels": {"a": [1]}}], r"labels.a: must be a text, not \[1\]"),
        ([{"targets": ["ftp://a"]}], "'ftp://a' is not an address such as"),
        ([{"targets": ["a:port"]}], "is not an address such as"),
    ],
)
def test_what_is_no_list_of_targets(content, words):
    """It says where, and what would do."""
    with pytest.raises(ConfigError, match=f"here: .*{words}|here.*{words}"):
        parse_groups(content, "here")


@pytest.mark.parametrize(
    ("name", "text"),
    [("t.json", '[{"targets": ["a:1"]}]'), ("t.yaml", "- targets: ['a:1']\n")],
)
def test_files(tmp_path: Path, name, text):
    """JSON and YAML."""
    (tmp_path / name).write_text(text)

    assert FileTargets(tmp_path / name).read() == (Target("http://a:1/metrics"),)


def test_files_by_a_pattern(tmp_path: Path):
    """Those there are now: one may come later, or none be there yet."""
    listed = FileTargets(tmp_path / "*.json")
    assert listed.read() == ()
    for name in "ba":
        (tmp_path / f"{name}.json").write_text(f'[{{"targets": ["{name}:1"]}}]')

    assert [one.instance for one in listed.read()] == ["a:1", "b:1"]


@pytest.mark.parametrize(
    ("name", "text"), [("t.json", "{"), ("t.yaml", "a: ["), ("t.yaml", "\ud83d"), ("gone", None)]
)
def test_files_that_cannot_be_read(tmp_path: Path, name, text):
    """The file is named."""
    if text is not None:
        (tmp_path / name).write_bytes(text.encode("utf-8", errors="surrogatepass"))

    with pytest.raises(ConfigError, match=name):
        FileTargets(tmp_path / name).read()


def test_secrets_in_an_address_are_not_shown():
    """Neither user, password nor query gets into a log or label."""
    url = checked("http://user:pass@host:8000/metrics?token=x", "here")

    assert shown(url) == "http://host:8000/metrics"
    assert Target(url).instance == "host:8000"


def test_engines_behind_one_gateway_are_told_apart():
    """By their path, or by the name that a label gives; only one target can have that name."""
    paths = ("metrics", "engine-1/metrics", "engine-2/metrics", "m", "")
    assert [Target(f"http://gw:80/{path}").instance for path in paths] == [
        "gw:80", "gw:80/engine-1", "gw:80/engine-2", "gw:80/m", "gw:80",
    ]  # fmt: skip
    [named] = parse_groups(
        [{"targets": ["gw:80"], "labels": {"instance": "sgl", "zone": "b"}}], "f"
    )
    assert (named.instance, named.more_labels) == ("sgl", {"zone": "b"})
    with pytest.raises(ConfigError, match=r"labels\.instance is the name of one target"):
        parse_groups([{"targets": ["a:1", "b:1"], "labels": {"instance": "both"}}], "f")
