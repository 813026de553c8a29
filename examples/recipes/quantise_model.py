"""Quantise a model's linear layers to INT8: `python quantise_model.py MODEL FOLDER`.

For the interpreter that has vLLM. Weights by output channel, activations by token as they come, in
the format of compressed-tensors, which vLLM's CPU kernels take.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

EIGHT_BITS = {"num_bits": 8, "type": "int", "symmetric": True}
CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "linear": {
            "targets": ["Linear"],
            "weights": {**EIGHT_BITS, "strategy": "channel"},
            "input_activations": {**EIGHT_BITS, "strategy": "token", "dynamic": True},
        }
    },
}


def quantise(model: Path, folder: Path) -> None:
    made = folder.with_name(f"{folder.name}.unfinished")
    shutil.copytree(model, made, dirs_exist_ok=True)
    tensors = load_file(model / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        weight = tensors[name].float()
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        tensors[name] = (weight / scale).round().to(torch.int8)
        tensors[f"{name}_scale"] = scale.to(torch.bfloat16)
    save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**config, "quantization_config": CONFIG}))
    made.rename(folder)  # whole, or not there


if __name__ == "__main__":
    quantise(Path(sys.argv[1]), Path(sys.argv[2]))
