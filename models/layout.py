"""Paths of the bundled models and of the training state, which is not committed."""

from __future__ import annotations

from pathlib import Path

MODELS_DIR = Path(__file__).resolve().parent
VERIFIER_DIR = MODELS_DIR / "verifier"
DRAFTER_DIR = MODELS_DIR / "drafter"
LARGE_DRAFTER_DIR = MODELS_DIR / "drafter-large"
DRAFTERS = (DRAFTER_DIR.name, LARGE_DRAFTER_DIR.name)  # the first one is the default
HELD_OUT_LIST = MODELS_DIR / "held_out.txt"
HELD_OUT_PROMPTS = MODELS_DIR / "held_out_prompts.jsonl"
EVALUATION = MODELS_DIR / "evaluation.json"
RUNS = MODELS_DIR / "runs.json"

CACHE_DIR = MODELS_DIR.parent / ".cache" / "models"
TOKENIZER_FILE = CACHE_DIR / "tokenizer.json"
TRAIN_TOKENS = CACHE_DIR / "train.npy"
REVISED_TOKENS = CACHE_DIR / "revised.npy"
REPEATED_TOKENS = CACHE_DIR / "repeated.npy"
SAMPLED_DIR = CACHE_DIR / "sampled"


def checkpoint_file(name: str) -> Path:
    """The newest resumable state of the run called `name`."""
    return CACHE_DIR / f"{name}.pt"
