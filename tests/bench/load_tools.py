"""Run a load generator once against an endpoint, and read the figures of each of its requests.

`llmtrace bench`, `vllm bench serve` and GuideLLM, each as its own command with the same requests
from one file, so that what differs is the tool. `scripts/install_load_tools.py` installs them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from llmtrace.engines.local_vllm.install import cache_folder, find_python
from llmtrace.exporters.row_files.read_back import read_rows
from llmtrace.load_test.other_tools import FIGURES

GUIDELLM: Final = "guidellm-0.8.1"  # as scripts/install_load_tools.py names it
OURS: Final = "llmtrace bench"
VLLM: Final = "vllm bench serve"
GUIDE: Final = "GuideLLM"
_TIMEOUT_S: Final = 300
# `vllm bench serve` without the `vllm` command, which does not know its own package's CPU build.
_VLLM_BENCH: Final = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent: requests of a file, so fast, or from so many clients.

    Attributes:
        url: of the endpoint, without a path.
        requests: file of JSON lines, each with `prompt` and `output_tokens`.
        count: of requests.
        rate: a second, at random; `None` = by `clients`.
        clients: that each wait for their response; `None` = by `rate`.
        tokenizer: folder of the model's tokenizer.
        cpus: that the tool may use.
    """

    url: str
    model: str
    requests: Path
    count: int
    output_tokens: int
    tokenizer: Path
    cpus: frozenset[int]
    rate: float | None = None
    clients: int | None = None
    seed: int = 0


Figures = Mapping[tuple[str, str], Sequence[float]]  # seconds of each request, by tool and name


def write_requests(path: Path, prompts: Sequence[str], output_tokens: int) -> None:
    """Write requests as all three tools read them."""
    lines = (
        {"prompt": prompt, "output_tokens": output_tokens, "max_tokens": output_tokens}
        for prompt in prompts
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def ours(load: Load, folder: Path) -> Figures:
    """Run `llmtrace bench`; figures by its definitions, and the marks that others' are made of."""
    speed = (
        ["--rate", str(load.rate)] if load.rate is not None
        else ["--concurrency", str(load.clients)]
    )  # fmt: skip
    _run(
        [sys.executable, "-m", "llmtrace", "bench", "--endpoint", f"{load.url}/v1",
         "--model", load.model, "--dataset", str(load.requests), "--requests", str(load.count),
         "--ignore-eos", "--seed", str(load.seed), "--out", str(folder), *speed],
        load, folder,
    )  # fmt: skip
    rows = [row for row in read_rows(folder / "rows.jsonl") if row.outcome == "success"]
    found = {(one.tool, one.name): map(one.of, rows) for one in FIGURES}
    return {key: [value for value in values if value is not None] for key, values in found.items()}


def vllm_bench(load: Load, folder: Path) -> Figures:
    """Run `vllm bench serve`."""
    speed = (
        ["--request-rate", str(load.rate)] if load.rate is not None
        else ["--max-concurrency", str(load.clients)]
    )  # fmt: skip
    _run(
        [str(find_python()), "-c", _VLLM_BENCH, "--backend", "openai-chat", "--base-url", load.url,
         "--endpoint", "/v1/chat/completions", "--model", str(load.tokenizer),
         "--served-model-name", load.model, "--dataset-name", "custom",
         "--dataset-path", str(load.requests), "--custom-output-len", "-1",
         "--skip-chat-template", "--num-prompts", str(load.count), "--num-warmups", "3",
         "--ignore-eos", "--temperature", "0", "--seed", str(load.seed), "--disable-tqdm",
         "--save-result", "--save-detailed", "--result-dir", str(folder),
         "--result-filename", "result.json", *speed],
        load, folder,
    )  # fmt: skip
    found = _read(folder / "result.json")
    whole = [
        (ttft, sum(gaps), tokens)
        for ttft, gaps, tokens, error in zip(
            found["ttfts"], found["itls"], found["output_lens"], found["errors"], strict=True
        )
        if not error
    ]
    return {
        (VLLM, "TTFT"): [ttft for ttft, _, _ in whole],
        # As `calculate_metrics` has it: gaps add up to the latency after the TTFT.
        (VLLM, "TPOT"): [gaps / (tokens - 1) for _, gaps, tokens in whole if tokens > 1],
    }


def guidellm(load: Load, folder: Path) -> Figures:
    """Run GuideLLM."""
    profile: dict[str, Any] = (
        {"kind": "poisson", "rate": [load.rate]} if load.rate is not None
        else {"kind": "concurrent", "streams": [load.clients]}
    )  # fmt: skip
    config = {
        "backend": {
            "kind": "openai_http", "target": load.url, "model": load.model,
            "extras": {"body": {"ignore_eos": True, "temperature": 0}},
        },
        "profile": profile,
        "constraints": [{"kind": "max_requests", "count": load.count}],
        "tokenizer": {"kind": "huggingface_auto"},
        "data": [{"kind": "json_file", "path": str(load.requests)}],
        "data_column_mapper": {
            "kind": "generative_column_mapper",
            "column_mappings": {
                "text_column": "prompt", "output_tokens_count_column": "output_tokens",
            },
        },
        "seed": {"kind": "static", "value": load.seed},
        "metrics": {"kind": "generative"},
        "outputs": [{"kind": "json", "path": str(folder / "report.json")}],
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"spec": config}), encoding="utf-8")
    program = cache_folder() / GUIDELLM / "bin" / "guidellm"
    _run([str(program), "run", "--config", str(folder / "config.json"), "--disable-console"],
         load, folder)  # fmt: skip
    [found] = _read(folder / "report.json")["benchmarks"]
    done = found["requests"]["successful"]
    names = {
        "TTFT": "time_to_first_token_ms", "TPOT": "time_per_output_token_ms",
        "ITL": "inter_token_latency_ms",
    }  # fmt: skip
    return {
        (GUIDE, name): [one[theirs] / 1000 for one in done if one[theirs] is not None]
        for name, theirs in names.items()
    }


TOOLS: Final[Mapping[str, Callable[[Load, Path], Figures]]] = {
    OURS: ours,
    VLLM: vllm_bench,
    GUIDE: guidellm,
}


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _run(command: Sequence[str], load: Load, folder: Path) -> None:
    """Run a command to its end, on the CPUs of the load alone.

    Raises:
        RuntimeError: it failed; carries the end of what it printed.
    """
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S,
        env={**os.environ, **offline, "HF_HOME": str(folder / "hf")},
        preexec_fn=lambda: os.sched_setaffinity(0, load.cpus),
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{(done.stdout + done.stderr)[-3000:]}")
