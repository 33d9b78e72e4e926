"""Compares our logits with those of transformers' own code, on a short text at startup.

Attention can differ in ways that no list of models foresees: a bias by distance, a second softmax,
attending ahead. Without the comparison, such a model would silently be served with wrong outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftloop.errors import StartupFailure
from draftloop.runtime import overflow, tree_attention
from draftloop.runtime.forward import Forward
from draftloop.runtime.trial import ADVICE, trial
from draftloop.tree import ROOT

if TYPE_CHECKING:
    from draftloop.runtime.model import LanguageModel

Input = tuple[list[int], list[int], list[int]]  # committed tokens, nodes, their parents

PROMPT, DEPTH = 12, 4  # tokens, if the context has room for them
STRIDE = 7919  # a prime, for token ids from all over the vocabulary
# Maximum distance of the logits, relative to how far logits of different texts lie apart. Rounding
# in bfloat16 gives a few hundredths, another kind of attention mostly one half or more. In float32,
# rounding gives millionths, so that another kind shows even where little depends on it. Experts
# rounded to four bits are refused only if their logits are entirely different.
MAX_DISTANCE, MAX_DISTANCE_IN_FLOAT32, MAX_DISTANCE_OF_COARSE_EXPERTS = 0.25, 0.001, 1.0


@dataclass(frozen=True, slots=True)
class Reference:
    """A prompt, a draft of two branches after it, and transformers' logits.

    nodes: those of the two branches alternate. logits: float32 [1 + nodes, vocabulary], after the
    prompt and every node.
    """

    prompt: list[int]
    nodes: list[int]
    logits: Tensor

    def require_same(self, model: LanguageModel) -> bool:
        """Whether a row's logits are bit for bit the same alone and in a draft.

        Raises StartupFailure if our logits differ too much from the reference, or if either are not
        finite.
        """
        _require_finite(self.logits, model, overflow.AT_FAULT)
        *before, last = self.prompt
        nodes = self.nodes[: model.options.max_draft_nodes]
        draft = nodes, [max(node - 2, ROOT) for node in range(len(nodes))]
        branch = [0, *range(1, 1 + len(nodes), 2)]
        # Not in the first forward: a layer may attend more than once and store the last keys only.
        batched_logits = self._run_each(model, before, [([last], *draft)])
        single_inputs: list[Input] = [([token], [], []) for token in (last, *nodes[::2])]
        single_logits = self._run_each(model, before, single_inputs)
        self._require_near(model, batched_logits, list(range(len(batched_logits))))
        self._require_near(model, single_logits, branch)
        return torch.equal(single_logits, batched_logits[branch])

    def _run_each(self, model: LanguageModel, before: list[int], inputs: Sequence[Input]) -> Tensor:
        """The logits of the inputs, run one after the other, after the tokens `before`, if any."""
        first: list[Input] = [(before, [], [])] if before else []
        slot = model.acquire()
        try:
            with trial(model.network.config.model_type):
                logits = [
                    model.forward([Forward(model, slot, *given)])[0] for given in (*first, *inputs)
                ]
        finally:
            model.cache.release(slot)
        return torch.cat(logits[len(first) :])

    def _require_near(self, model: LanguageModel, logits: Tensor, rows: list[int]) -> None:
        _require_finite(logits, model, _advice(model))
        distance = self.distance(logits, rows)
        limit = _max_distance(model)
        if not distance <= limit:  # also true for NaN
            raise StartupFailure(
                f"model: {model.network.config.model_type} attends in a way that is not supported: "
                f"what it says of a short text differs from what transformers says, by "
                f"{distance:.2g} of what texts differ by (at most {limit}); {_advice(model)}"
            )

    def distance(self, logits: Tensor, rows: list[int]) -> float:
        """Median distance of these rows from the reference, relative to that between texts."""
        spread = (self.logits - self.logits.mean(0)).norm(dim=-1)[rows]
        return float(((logits - self.logits[rows]).norm(dim=-1) / spread).median())


def _require_finite(logits: Tensor, model: LanguageModel, otherwise: str) -> None:
    """Raises StartupFailure if not; it advises `otherwise` if there is no wider dtype."""
    dtype = model.options.dtype
    if not bool(logits.isfinite().all()):
        raise StartupFailure(
            f"model: what {model.network.config.model_type} says of a short text "
            f"{overflow.NO_NUMBER} in {dtype}; {overflow.advice(dtype, otherwise)}"
        )


def _max_distance(model: LanguageModel) -> float:
    if model.coarse_experts:
        return MAX_DISTANCE_OF_COARSE_EXPERTS
    exact = model.options.dtype == "float32" and not model.options.quantization
    return MAX_DISTANCE_IN_FLOAT32 if exact else MAX_DISTANCE


def _advice(model: LanguageModel) -> str:
    return f"try it without quantization, or {ADVICE}" if model.options.quantization else ADVICE


@torch.inference_mode()
def compute_reference(network: PreTrainedModel, context_length: int) -> Reference:
    """The reference of a network, run with transformers' own attention; ours is restored after."""
    size = int(network.config.get_text_config(decoder=True).vocab_size)
    depth = max(1, min(DEPTH, context_length // 2))
    start = max(1, min(PROMPT, context_length - depth))
    ids = [(1 + place) * STRIDE % size for place in range(start + 2 * depth)]
    prompt, nodes = ids[:start], ids[start:]
    texts = [prompt + nodes[branch::2] for branch in (0, 1)]
    with trial(network.config.model_type):
        network.set_attn_implementation("eager")
        given = torch.tensor(texts, device=network.device)
        logits = network(input_ids=given, use_cache=False).logits.float()
    network.set_attn_implementation(tree_attention.NAME)
    after = logits[:, start:].transpose(0, 1).flatten(0, 1)
    return Reference(prompt, nodes, torch.cat([logits[:1, start - 1], after]))
