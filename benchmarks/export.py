"""`python -m benchmarks.export --out FOLDER`: the bundled pair for other servers to load.

Writes the cost-inflated target and the draft model as Hugging Face checkpoints, for vLLM, SGLang
and TGI, and as GGUF files, for llama.cpp. `benchmarks.servers` compares what serves them.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from transformers import LlamaForCausalLM

from benchmarks.gguf_file import TYPES, write_gguf
from benchmarks.output import run_command
from benchmarks.uniform import uniform
from draftloop.config import bundled_model
from draftloop.runtime.inflate import count_parameters, parse_size

TARGET, DRAFT = "target", "draft"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def export_pair(folder: Path, size: int) -> dict[str, Path]:
    """Writes both models as checkpoints; `size` in parameters, 0 for the target as it is."""
    folders = {name: folder / name for name in (TARGET, DRAFT)}
    for name, bundled in ((TARGET, "verifier"), (DRAFT, "drafter")):
        source = bundled_model(bundled)
        model = LlamaForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
        if name == TARGET and size:
            model = uniform(model, size)
        model.save_pretrained(folders[name])
        for file in TOKENIZER_FILES:
            shutil.copyfile(source / file, folders[name] / file)
        Console().print(f"{folders[name]}: {count_parameters(model):,} parameters", highlight=False)
    return folders


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for both models")
    parser.add_argument("--inflate", default="300M", help="size of the target, such as 300M")
    parser.add_argument("--gguf", action="append", choices=list(TYPES), default=[],
                        help="also as GGUF files with such weights; may be repeated")  # fmt: skip
    chosen = parser.parse_args(arguments)
    folders = export_pair(chosen.out, parse_size(chosen.inflate))
    for name, checkpoint in folders.items():
        for kind in chosen.gguf:
            file = chosen.out / f"{name}-{kind}.gguf"
            write_gguf(checkpoint, file, kind)
            Console().print(str(file), highlight=False)


if __name__ == "__main__":
    run_command(main)
