"""Does `llmtrace kv` work out what fits, and say what it lacks?"""

from __future__ import annotations

import argparse
import json

import pytest

from llmtrace.cli import main
from llmtrace.cli.kv import size_of
from llmtrace.exporters.row_files.sink import write_rows
from llmtrace.testing import make_row

FIGURES = ["--layers", "32", "--kv-heads", "32", "--head-dim", "128", "--dtype", "fp16"]


def test_figures_give_a_report(capsys):
    """What people quote, to the byte."""
    assert main(["kv", *FIGURES, "--tokens", "2048", "--cache-memory", "32GiB"]) == 0
    printed = capsys.readouterr().out
    assert "524,288 bytes" in printed
    assert printed.count("model") == 1
    assert "32 of 2,048 tokens fit at once" in printed


def test_without_memory_only_the_token_is_known(capsys):
    """Nothing is made up."""
    assert main(["kv", *FIGURES]) == 0
    assert "fit" not in capsys.readouterr().out


def test_rows_are_the_mix(tmp_path, capsys):
    """Prompt and output of each request together."""
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        rows = [make_row(prompt_tokens=n, output_tokens=24) for n in (1000, 3048)]
        write_rows(file, [*rows, make_row(prompt_tokens=9)])  # of unknown length
    options = ["--rows", str(path), "--cache-memory", "32GiB", "--json"]
    assert main(["kv", *FIGURES, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"] == 65_536
    assert found["fit"]["mean_tokens"] == 2048


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "give --model-config, or all of"),
        (["--layers", "2"], "give --model-config, or all of"),
        ([*FIGURES, "--gpu-memory", "80GB"], "add --parameters"),
        (
            [*FIGURES, "--gpu-memory", "80GB", "--cache-memory", "1GB", "--parameters", "8B"],
            "not together with --gpu-memory",
        ),
        ([*FIGURES, "--model-config", "x"], "not together with --layers"),
        ([*FIGURES, "--tensor-parallel", "3"], "32 KV heads cannot be split over 3 GPUs"),
    ],
)
def test_what_is_missing_is_named(capsys, options, problem):
    """With the option that would give it, and exit status 2."""
    assert main(["kv", *options]) == 2
    assert problem in capsys.readouterr().err


def test_weights_that_do_not_fit_are_said(capsys):
    """With how much memory is missing."""
    memory = ["--gpu-memory", "80GB", "--parameters", "70B", "--tokens", "2048"]
    assert main(["kv", *FIGURES, *memory]) == 0
    assert "63.33 GiB more memory is needed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "count"),
    [("80GB", 80 * 10**9), ("24 GiB", 24 << 30), ("1048576", 1 << 20), ("1.5mib", 3 << 19)],
)
def test_sizes(text, count):
    """Decimal and binary units are apart, as on a data sheet and in a log."""
    assert size_of(text) == count


def test_a_number_without_a_unit_is_not_taken_for_bytes():
    """`--cache-memory 40` is no cache of 40 bytes."""
    with pytest.raises(argparse.ArgumentTypeError, match="write 40GB or 40GiB"):
        size_of("40")
