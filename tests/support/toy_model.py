"""Tiny models: real ones with random weights on disk, and tables that say everything by prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig

from draftloop.runtime.acceptance import accept
from draftloop.runtime.forward import Forward
from draftloop.runtime.model import LanguageModel, ModelOptions
from draftloop.runtime.sampling import Sampler
from draftloop.tree import DraftTree, Verdict

VOCABULARY_SIZE = 96
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": None,
}


def llama_config(**changes: Any) -> LlamaConfig:
    """Two layers, grouped-query attention; weights wide enough that tokens differ clearly."""
    return LlamaConfig(**{**SIZES, "initializer_range": 0.3, **changes})


def save_model(folder: Path, config: PretrainedConfig | None = None, *, seed: int = 0) -> Path:
    """Writes a model with random weights and a byte-level tokenizer; returns the folder."""
    torch.manual_seed(seed)
    network = AutoModelForCausalLM.from_config(config or llama_config())
    network.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """A byte-level BPE of 96 tokens without merges: one end token and the printable characters."""
    characters = [chr(code) for code in range(33, 33 + VOCABULARY_SIZE - 2)] + ["Ġ"]
    vocabulary = {"<end>": 0} | {text: index for index, text in enumerate(characters, start=1)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def load_model(folder: Path, **options: Any) -> LanguageModel:
    """The folder's model in float32 with four sessions of up to 24 draft nodes."""
    defaults = {"max_sessions": 4, "max_draft_nodes": 24}
    return LanguageModel(ModelOptions(folder=folder, **{**defaults, **options}))


def plain_logits(folder: Path, token_ids: Sequence[int]) -> Tensor:
    """[tokens, vocabulary] from transformers' own eager forward over the whole text."""
    network = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with torch.inference_mode():
        logits: Tensor = network(torch.tensor([list(token_ids)]), use_cache=False).logits[0]
    return logits


@dataclass
class TableModel:
    """A scripted target: logits over a few tokens, drawn once per prefix.

    The table is keyed by the last `memory` tokens and the length, so it is exhaustive and a wrong
    prefix is seen at once.
    """

    vocabulary_size: int = 4
    seed: int = 0
    memory: int = 3
    spread: float = 1.5
    _rows: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def logits(self, prefix: Sequence[int]) -> Tensor:
        """float32 [vocabulary] after `prefix`."""
        key = (len(prefix), *prefix[-self.memory :])
        if key not in self._rows:
            generator = np.random.default_rng([self.seed, *key])
            row = generator.normal(0, self.spread, self.vocabulary_size)
            self._rows[key] = torch.tensor(row, dtype=torch.float32)
        return self._rows[key]

    def verify(
        self,
        sampler: Sampler,
        committed: Sequence[int],
        tree: DraftTree,
        stop_token_ids: Sequence[int] = (),
    ) -> Verdict:
        """One round as a verifier runs it: every node's token chosen at its own prefix."""
        paths = [
            [tree.token_ids[node] for node in tree.path(index)] for index in range(-1, len(tree))
        ]
        logits = torch.stack([self.logits([*committed, *path]) for path in paths])
        positions = [len(committed) + len(path) for path in paths]
        predictions = sampler.choose(logits, positions, paths)
        return accept(tree, predictions[0], predictions[1:], stop_token_ids)


class FakeModel:
    """Stands where a LanguageModel would: notes the batches, answers zeros or what it is told."""

    def __init__(self) -> None:
        self.batches: list[list[Forward]] = []
        self.failure: Exception | None = None

    def forward(self, forwards: Sequence[Forward]) -> list[Tensor]:
        """[rows, 1] zeros for every forward, or the failure."""
        self.batches.append(list(forwards))
        if self.failure is not None:
            raise self.failure
        return [torch.zeros(forward.rows - forward.logits_from, 1) for forward in forwards]
