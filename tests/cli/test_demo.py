"""Do the options of `llmtrace demo` reach what it calls?"""

from __future__ import annotations

import pytest

from llmtrace.cli import main
from llmtrace.demo.options import DemoOptions


@pytest.mark.parametrize(
    "options",
    [
        ["--seconds", "0"],
        ["--seconds", "inf"],
        ["--seconds", "soon"],
        ["--requests", "1.5"],
        ["--concurrency", "-1"],
        ["--vllm", "--endpoint", "http://127.0.0.1:1/v1"],
    ],
)
def test_options_that_cannot_be_are_refused(options, capsys):
    """A wrong number or combination is status 2, with the usage."""
    with pytest.raises(SystemExit, match="2"):
        main(["demo", *options])
    assert "usage: llmtrace demo" in capsys.readouterr().err


def test_demo_is_called_with_its_options(monkeypatch, tmp_path):
    """Every option of the command reaches the one function it calls."""
    seen = []
    monkeypatch.setattr("llmtrace.demo.run.run", seen.append)
    text = "--endpoint http://h/v1 --model m --api-key-env K --seconds 2.5 --requests 7"
    files = ["--budget", str(tmp_path / "b"), "--rows-out", str(tmp_path / "j")]

    assert main(["demo", *text.split(), "--concurrency", "3", *files]) == 0
    assert seen == [
        DemoOptions(
            endpoint="http://h/v1",
            model="m",
            api_key_env="K",
            seconds=2.5,
            requests=7,
            users=3,
            budget=tmp_path / "b",
            rows_out=tmp_path / "j",
        )
    ]
