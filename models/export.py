"""Writes a model as a Hugging Face folder of bfloat16 safetensors, each file atomically.

`python -m models.export --verifier verifier --drafter distilled` publishes the models of these runs
as `models/verifier` and `models/drafter`; a model that is not named stays as it is.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaForCausalLM

from models.architecture import CONFIGURATIONS, grow
from models.checkpoint import BUNDLED, load_model, state_of_run
from models.layout import MODELS_DIR, VERIFIER_DIR, checkpoint_file
from models.tokenizer import END_OF_TEXT_ID, for_transformers, require_same, trained

# Larger weights are split among several files, which from_pretrained puts together again: hosts of
# repositories and mirrors limit the size of a file.
MAX_FILE_BYTES = 15 << 20


def publish(model: LlamaForCausalLM, folder: Path) -> None:
    """Replaces the files of `folder` one by one by renaming, so that no reader sees half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as scratch:
        half = model.to(torch.bfloat16)
        half.config.dtype = torch.bfloat16
        half.generation_config = GenerationConfig(
            bos_token_id=END_OF_TEXT_ID, eos_token_id=END_OF_TEXT_ID, pad_token_id=END_OF_TEXT_ID
        )
        half.save_pretrained(scratch, max_shard_size=MAX_FILE_BYTES)
        for_transformers(trained()).save_pretrained(scratch)
        files = sorted(Path(scratch).iterdir())
        for file in files:
            file.chmod(0o644)
            os.replace(file, folder / file.name)
        names = {file.name for file in files}
        for file in folder.glob("model*.safetensors*"):
            if file.name not in names:  # it belongs to weights in another number of files
                file.unlink()


def averaged(left: LlamaForCausalLM, shipped: LlamaForCausalLM, share: float) -> LlamaForCausalLM:
    """`left` with the weighted mean of both models' weights; `share` (0 to 1) is its own weight.

    This keeps much of what a run from the shipped weights learned, with less of what it forgot
    (WiSE-FT, arXiv 2109.01903).
    """
    before = shipped.state_dict()
    left.load_state_dict(
        {name: before[name].lerp(weight, share) for name, weight in left.state_dict().items()}
    )
    return left


def main() -> None:
    """Parses the command line and publishes what it names."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in CONFIGURATIONS:
        parser.add_argument(
            f"--{name}", dest=name, metavar="RUN", help=f"the run whose model becomes the {name}"
        )
    parser.add_argument(
        "--share", type=float, default=1.0,
        help="0 to 1, of these runs in the mean with the weights that are shipped so far",
    )  # fmt: skip
    options = parser.parse_args()
    named = {name: run for name in CONFIGURATIONS if (run := getattr(options, name))}
    if not named:
        parser.error(f"nothing to publish: name a run by --{' or --'.join(CONFIGURATIONS)}")
    if VERIFIER_DIR.name not in named:
        require_same(VERIFIER_DIR)  # for which the draft models draft
    for name, run in named.items():
        if not checkpoint_file(run).exists():
            parser.error(f"no run is called {run}: there is no {checkpoint_file(run)}")
        layers = CONFIGURATIONS[name]().num_hidden_layers
        model = grow(load_model(checkpoint_file(run)), layers)
        if options.share < 1:
            require_same(MODELS_DIR / name)
            model = averaged(model, state_of_run(BUNDLED, MODELS_DIR / name).model, options.share)
        publish(model, MODELS_DIR / name)


if __name__ == "__main__":
    main()
