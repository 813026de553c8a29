"""Make a language model that a real engine serves in seconds on a CPU.

A program for the interpreter that has vLLM: `python tiny_model.py FOLDER HIDDEN_SIZE LAYERS`.
Weights are random, one byte of text is one token; its output is meaningless.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any, Final

# Longer prompts than any test needs; positions cost nothing until used.
_MAX_POSITIONS: Final = 8192
_HEAD_SIZE: Final = 64
_SPECIAL: Final = ("<s>", "</s>", "<pad>")
_CHAT_TEMPLATE: Final = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}assistant: "
)


def make_tokenizer() -> Any:
    """Make a byte-level BPE tokenizer without merges, so that prompt lengths are exact."""
    tokenizers = import_module("tokenizers")
    transformers = import_module("transformers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number for number, symbol in enumerate((*alphabet, *_SPECIAL))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    bos, eos, pad = _SPECIAL
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=bos, eos_token=eos, pad_token=pad
    )
    fast.chat_template = _CHAT_TEMPLATE
    return fast


def make_weights(hidden_size: int, layers: int, tokenizer: Any) -> Any:
    """Make a Llama with random weights; the same sizes always give the same weights."""
    torch = import_module("torch")
    transformers = import_module("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=hidden_size // _HEAD_SIZE,
        num_key_value_heads=hidden_size // _HEAD_SIZE // 2,
        max_position_embeddings=_MAX_POSITIONS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


def save_model(folder: Path, hidden_size: int, layers: int) -> None:
    """Write the model to `folder`, which appears whole or not at all.

    Two programs may make the same model at once: the first to finish gives the folder its name.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        tokenizer = make_tokenizer()
        make_weights(hidden_size, layers, tokenizer).save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        unfinished.chmod(0o755)
        unfinished.replace(folder)
    except OSError:
        if not (folder / "config.json").is_file():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


if __name__ == "__main__":
    save_model(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
