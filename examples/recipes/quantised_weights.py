"""Weights of eight bits instead of sixteen, on a real vLLM: its kernels for INT8 on a CPU."""

import subprocess
from pathlib import Path

from recipe import VLLM, ask, find_python, measure, note, report, run, tiny_model, vllm

QUOTED = "FP8: TTFT 8.5 % less; INT8 on TensorRT-LLM: p50 3.2 -> 2.4 s"
SIZE = (1024, 8)  # large enough for its weights to be what a step waits for
PROGRAM = Path(__file__).with_name("quantise_model.py")


def quantised(model: Path) -> Path:
    """Return the folder of the same model in INT8, which is made unless it is there."""
    folder = model.with_name(f"{model.name}-int8")
    if not folder.exists():
        subprocess.run([find_python(), PROGRAM, model, folder], check=True)
    return folder


def main(count: int) -> bool:
    rows = []
    model = tiny_model(*SIZE)
    for weights in (model, quantised(model)):
        to = vllm(model=weights)
        rows.append(measure(lambda i, e=to: list(ask(e, f"{i} {'word ' * 300}", 32)), count))
    right = report(
        "BF16 and INT8", QUOTED, *rows, moved="decode", still="network", shown="ttft", by=VLLM
    )
    note("FP8 needs a processor with AMX, or a GPU: quoted, not measured here")
    return right


if __name__ == "__main__":
    run(main)
