"""Tiny models: real ones with random weights on disk, and scripted ones by prefix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig

from draftloop.runtime.acceptance import accept
from draftloop.runtime.forward import Forward, Segment, Task, lay_out
from draftloop.runtime.kv_cache import CacheShape, KVCache, Slot
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.sampling import Sampler
from draftloop.runtime.step import StepSize
from draftloop.tree import DraftTree, Verdict

T = TypeVar("T")

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
    """Two layers, grouped-query attention; weights large enough that logits differ clearly."""
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


@dataclass
class TableModel:
    """A scripted target: logits over a few tokens, drawn once per prefix.

    The table is keyed by the last `memory` tokens and the length. So it is defined for every
    prefix, and a wrong prefix shows at once.
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
        """One round as a verifier runs it: a token is sampled at every node's own prefix."""
        paths = [
            [tree.token_ids[node] for node in tree.path(index)] for index in range(-1, len(tree))
        ]
        logits = torch.stack([self.logits([*committed, *path]) for path in paths])
        positions = [len(committed) + len(path) for path in paths]
        predictions = sampler.choose(logits, positions, paths)
        return accept(tree, predictions[0], predictions[1:], stop_token_ids)


class FakeModel:
    """Replaces a LanguageModel: records the batches, and answers with zeros or a failure."""

    def __init__(self) -> None:
        self.batches: list[list[Forward]] = []
        self.step_size = StepSize()
        self.failure: Exception | None = None

    def forward(self, forwards: Sequence[Forward]) -> list[Tensor]:
        """[rows, 1] zeros for every forward, or raises the failure."""
        self.batches.append(list(forwards))
        if self.failure is not None:
            raise self.failure
        return [torch.zeros(forward.rows - forward.logits_from, 1) for forward in forwards]


class ScriptedModel:
    """Replaces a LanguageModel with one whose logits are `law(prefix)`.

    Its keys are the token ids themselves: every row's prefix is read from a real cache through the
    real layout. So a row that was kept, moved or masked wrongly results in a wrong prefix.
    """

    device = torch.device("cpu")
    forward_seconds = 0.0
    step_size = StepSize()
    prepared = None

    def __init__(
        self,
        law: Callable[[Sequence[int]], Tensor],
        vocabulary_size: int,
        *,
        context_length: int = 128,
        max_draft_nodes: int = 24,
        stop_token_ids: tuple[int, ...] = (),
    ) -> None:
        self.law = law
        self.vocabulary_size = vocabulary_size
        self.context_length = context_length
        self.stop_token_ids = stop_token_ids
        self.options = ModelOptions(folder=Path(), max_draft_nodes=max_draft_nodes)
        rows = context_length + max_draft_nodes
        shape = CacheShape(layers=1, slots=4, kv_heads=1, rows=rows, head_dim=1)
        self.cache = KVCache(shape, dtype=torch.float32, device=self.device)
        # per forward: the text up to its last row, number of new rows and of requested logits
        self.read: list[tuple[list[int], int, int]] = []

    def acquire(self) -> Slot:
        """A slot of the cache."""
        return self.cache.acquire(self.options.max_draft_nodes)

    def forward(self, forwards: Sequence[Forward]) -> list[Tensor]:
        """The requested logits of each forward, float32 [rows, vocabulary]."""
        batch = lay_out(forwards)
        return [
            self._answer(forward, segment, batch.token_ids[segment.start : segment.stop])
            for forward, segment in zip(forwards, batch.segments, strict=True)
        ]

    def _answer(self, forward: Forward, segment: Segment, new: list[int]) -> Tensor:
        keys = self.cache.keys[0][segment.slot, 0, :, 0]
        keys[segment.stored_from : segment.stored_to] = torch.tensor(new, dtype=torch.float32)
        prefixes: list[list[int]] = []
        for row in range(forward.rows):
            newest = segment.stored_from + row
            is_visible = np.arange(segment.stored_to) <= newest
            places = np.nonzero(is_visible if segment.mask is None else segment.mask[row])[0]
            places = places[np.argsort(segment.stored_positions[places])]
            assert segment.stored_positions[places].tolist() == list(range(len(places)))
            assert len(places) <= self.context_length
            prefixes.append([int(token) for token in keys[places]])
        answered = prefixes[forward.logits_from :]
        self.read.append((prefixes[-1], forward.rows, len(answered)))
        if not answered:
            return torch.zeros(0, self.vocabulary_size)
        return torch.stack([self.law(prefix) for prefix in answered])


def run(task: Task[T]) -> T:
    """Runs a task alone, as the engine would; returns its result."""
    try:
        forward = next(task)
        while True:
            assert isinstance(forward, Forward)
            forward = task.send(forward.model.forward([forward])[0])
    except StopIteration as finished:
        result: T = finished.value
        return result
