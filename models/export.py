"""Writes a model as a Hugging Face folder of bfloat16 safetensors, file by file atomically.

`python -m models.export` publishes the newest checkpoints as `models/verifier`, `models/drafter`.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from models.architecture import build, drafter_configuration, grow, verifier_configuration
from models.checkpoint import load_model
from models.layout import DRAFTER_DIR, TOKENIZER_FILE, VERIFIER_DIR, checkpoint_file
from models.tokenizer import END_OF_TEXT_ID, for_transformers


def publish(model: LlamaForCausalLM, folder: Path) -> None:
    """Replaces the files of `folder` one by one by renaming, so that no reader sees half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as scratch:
        half = model.to(torch.bfloat16)
        half.config.dtype = torch.bfloat16
        half.generation_config = GenerationConfig(
            bos_token_id=END_OF_TEXT_ID, eos_token_id=END_OF_TEXT_ID, pad_token_id=END_OF_TEXT_ID
        )
        half.save_pretrained(scratch)
        for_transformers(Tokenizer.from_file(str(TOKENIZER_FILE))).save_pretrained(scratch)
        for file in sorted(Path(scratch).iterdir()):
            file.chmod(0o644)
            os.replace(file, folder / file.name)


def newest(runs: tuple[str, ...], config: LlamaConfig) -> LlamaForCausalLM:
    """The model of the first run that has a checkpoint, at full depth, else an untrained one."""
    for name in runs:
        if checkpoint_file(name).exists():
            return grow(load_model(checkpoint_file(name)), config.num_hidden_layers)
    return build(config, seed=0)


def main() -> None:
    """Publishes both models."""
    publish(newest(("verifier",), verifier_configuration()), VERIFIER_DIR)
    publish(newest(("distilled", "drafter"), drafter_configuration()), DRAFTER_DIR)


if __name__ == "__main__":
    main()
