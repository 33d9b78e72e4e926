"""Our cache, layout and tree attention against transformers' forward pass over plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from draftloop.runtime import tree_attention
from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.prefill import prefill
from draftloop.runtime.scoring import Scoring
from draftloop.runtime.step import LONGEST_S, StepSize
from draftloop.tree import ROOT
from tests.support.families import FAMILIES
from tests.support.toy_model import llama_config, load_model, save_model

PROMPT = [5, 17, 3, 88, 41, 2, 60, 9, 33, 71, 14, 14, 7]
MOST_NODES = 64


class ModelPair:
    """Our model, and the same weights in transformers with eager attention."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.model: LanguageModel = load_model(folder, **options)
        self.network = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")

    def check(self, logits: Tensor, text: Sequence[int]) -> None:
        """Asserts that the row is transformers' after `text`."""
        torch.testing.assert_close(logits, self.reference_logits(text)[-1], rtol=1e-4, atol=1e-4)

    def reference_logits(self, text: Sequence[int]) -> Tensor:
        """[tokens, vocabulary]: transformers' logits after every token of the text."""
        with torch.inference_mode():
            logits: Tensor = self.network(torch.tensor([list(text)]), use_cache=False).logits[0]
        return logits

    def run(self, slot: Slot, committed: Sequence[int], **nodes: Any) -> Tensor:
        return self.model.forward([Forward(self.model, slot, committed, **nodes)])[0]


@pytest.fixture(scope="module", params=list(FAMILIES))
def any_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    return ModelPair(save_model(tmp_path_factory.mktemp("model"), FAMILIES[request.param]))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    return ModelPair(save_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def large_draft_pair(tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    """A model with room for the largest draft; its logits depend on all tokens of a long text."""
    folder = save_model(tmp_path_factory.mktemp("model"))
    return ModelPair(folder, max_draft_nodes=MOST_NODES)


@pytest.fixture
def slot(any_pair: ModelPair) -> Iterator[Slot]:
    acquired = any_pair.model.acquire()
    yield acquired
    any_pair.model.cache.release(acquired)


def path_nodes(parents: Sequence[int], node: int) -> list[int]:
    path: list[int] = []
    while node != ROOT:
        path.insert(0, node)
        node = parents[node]
    return path


def path_tokens(tokens: Sequence[int], parents: Sequence[int], node: int) -> list[int]:
    return [tokens[at] for at in path_nodes(parents, node)]


def random_tree(seed: int, count: int) -> tuple[list[int], list[int]]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 96, (count,), generator=generator).tolist()
    parents = [
        int(torch.randint(-1, max(index, 0), (1,), generator=generator)) if index else ROOT
        for index in range(count)
    ]
    return tokens, parents


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("split", [12, 5])
def test_node_logits_match_the_path_as_plain_text(
    any_pair: ModelPair, slot: Slot, seed: int, split: int
) -> None:
    """Trees grown in one and in two forward passes, the first with the prompt's last tokens."""
    tokens, parents = random_tree(seed, 12)
    rows = any_pair.run(
        slot, PROMPT, node_token_ids=tokens[:split], node_parents=parents[:split],
        logits_from=len(PROMPT) - 1,
    )  # fmt: skip
    any_pair.check(rows[0], PROMPT)
    if split < len(tokens):
        later = any_pair.run(slot, [], node_token_ids=tokens[split:], node_parents=parents[split:])
        rows = torch.cat([rows, later])
    for node in range(len(tokens)):
        any_pair.check(rows[1 + node], [*PROMPT, *path_tokens(tokens, parents, node)])


@st.composite
def parents_of_trees(draw: st.DrawFn) -> list[int]:
    """Parents of up to 64 nodes; every second one follows the node before it, for long paths."""
    count = draw(st.integers(1, MOST_NODES))
    return [draw(st.just(node - 1) | st.integers(ROOT, node - 1)) for node in range(count)]


@settings(max_examples=40, deadline=None)
@given(parents=parents_of_trees(), split=st.integers(1, MOST_NODES), alone=st.booleans())
@example(parents=list(range(ROOT, MOST_NODES - 1)), split=MOST_NODES, alone=True)
@example(parents=list(range(ROOT, MOST_NODES - 1)), split=20, alone=False)
def test_logits_of_trees_of_any_shape_match_plain_text(
    large_draft_pair: ModelPair, parents: list[int], split: int, alone: bool
) -> None:
    """A row that saw more or less than its path would have other logits.

    Alone, compiled code selects what each row sees; beside another session a mask does.
    """
    tokens = [1 + 7 * node % 95 for node in range(len(parents))]
    held, other = large_draft_pair.model.acquire(), large_draft_pair.model.acquire()
    rows = []
    for first, stop in ((0, split), (split, len(tokens))):
        if tokens[first:stop]:
            nodes = tokens[first:stop], parents[first:stop]
            forwards = [Forward(large_draft_pair.model, held, [] if first else PROMPT, *nodes)]
            forwards[0].logits_from = 0 if first else len(PROMPT) - 1
            other_forwards = [] if alone else [Forward(large_draft_pair.model, other, [3, 4])]
            rows.append(large_draft_pair.model.forward([*forwards, *other_forwards])[0])
    logits = torch.cat(rows)[1:]
    for leaf in set(range(len(tokens))) - set(parents):
        path = path_nodes(parents, leaf)
        text = [*PROMPT, *(tokens[node] for node in path)]
        torch.testing.assert_close(
            logits[path],
            large_draft_pair.reference_logits(text)[len(PROMPT) :],
            rtol=1e-4,
            atol=1e-4,
        )
    for slot in (held, other):
        large_draft_pair.model.cache.release(slot)


def test_rows_moved_by_advance_are_used_by_later_forwards(any_pair: ModelPair, slot: Slot) -> None:
    tokens, parents = [20, 21, 22, 23, 24, 25], [ROOT, ROOT, 1, 1, 3, 4]
    any_pair.run(slot, PROMPT, node_token_ids=tokens, node_parents=parents)
    text = [*PROMPT, 21, 23, 24, 50]
    slot.advance(text)
    assert (slot.length, slot.pending) == (len(PROMPT) + 3, 0)
    rows = any_pair.run(slot, [50], node_token_ids=[8, 9], node_parents=[ROOT, 0])
    for row, branch in zip(rows, ([], [8], [8, 9]), strict=True):
        any_pair.check(row, [*text, *branch])


def test_truncated_rows_are_overwritten(any_pair: ModelPair, slot: Slot) -> None:
    any_pair.run(slot, [*PROMPT, 1, 2, 3], node_token_ids=[4], node_parents=[ROOT])
    slot.truncate(6)
    text = [*PROMPT[:6], 77, 78]
    any_pair.check(any_pair.run(slot, [77, 78])[-1], text)


def test_deep_chain_grown_one_node_per_forward(any_pair: ModelPair, slot: Slot) -> None:
    """Deeper than the sliding window: nodes leave it by position, not by row."""
    text = list(PROMPT)
    any_pair.run(slot, PROMPT)
    any_pair.run(slot, [], node_token_ids=[90, 91], node_parents=[ROOT, ROOT])
    parent = ROOT
    for step in range(12):
        text.append(30 + step)
        row = any_pair.run(slot, [], node_token_ids=[text[-1]], node_parents=[parent])
        parent = slot.pending - 1
        any_pair.check(row[0], text)


def run_task(model: LanguageModel, task: Task[None]) -> int:
    steps = 0
    for forward in task:
        assert isinstance(forward, Forward)
        assert model.forward([forward])[0].shape[0] == 0
        steps += 1
    return steps


def test_prefill_in_chunks_leaves_the_last_tokens(any_pair: ModelPair, slot: Slot) -> None:
    text = [*PROMPT, *range(10, 20)]
    assert run_task(any_pair.model, prefill(any_pair.model, slot, text, chunk_tokens=9)) == 2
    assert slot.length == 18
    any_pair.check(any_pair.run(slot, text[18:])[-1], text)


def test_whole_prefill_leaves_only_the_last_token(any_pair: ModelPair, slot: Slot) -> None:
    text = [*PROMPT, *range(10, 20)]
    prefill_task = prefill(any_pair.model, slot, text, chunk_tokens=9, whole=True)
    assert run_task(any_pair.model, prefill_task) == -(-(len(text) - 1) // 9)
    assert slot.length == len(text) - 1
    any_pair.check(any_pair.run(slot, text[-1:])[-1], text)


def test_prefill_chunks_respect_the_step_size(
    any_pair: ModelPair, slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = [7 + at % 80 for at in range(100)]
    size = StepSize(LONGEST_S * 1e9 / 40)
    # a forward pass here would adapt it to this machine
    monkeypatch.setattr(size, "observe", lambda rows, nanoseconds: None)
    monkeypatch.setattr(any_pair.model, "step_size", size)
    assert run_task(any_pair.model, prefill(any_pair.model, slot, text, chunk_tokens=256)) == 2
    assert slot.length == 80
    any_pair.check(any_pair.run(slot, text[80:])[-1], text)


def test_sessions_in_one_forward_are_isolated(llama: ModelPair) -> None:
    slots = [llama.model.acquire() for _ in range(3)]
    texts = [PROMPT, PROMPT[4:], [*PROMPT, 44]]
    llama.run(slots[2], PROMPT)
    forwards = [
        Forward(llama.model, slots[0], texts[0], [8, 9], [ROOT, ROOT], len(texts[0]) - 1),
        Forward(llama.model, slots[1], texts[1], logits_from=len(texts[1])),
        Forward(llama.model, slots[2], [44], [8], [ROOT]),
    ]
    first, none, last = llama.model.forward(forwards)
    assert none.shape == (0, 96)
    for row, branch in zip(first, ([], [8], [9]), strict=True):
        llama.check(row, [*texts[0], *branch])
    for row, branch in zip(last, ([], [8]), strict=True):
        llama.check(row, [*texts[2], *branch])
    for acquired in slots:
        llama.model.cache.release(acquired)


def test_failed_forward_keeps_the_committed_rows(
    llama: ModelPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = llama.model.acquire()
    llama.run(slot, PROMPT[:-1])

    def fail(_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(llama.model, "_run", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            llama.run(slot, PROMPT[-1:], node_token_ids=[1], node_parents=[ROOT])
    assert (slot.length, slot.pending) == (len(PROMPT) - 1, 0)
    llama.check(llama.run(slot, PROMPT[-1:])[-1], PROMPT)
    llama.model.cache.release(slot)


def test_torch_attention_with_a_mask_runs_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention on a GPU writes its scores out, so it runs in parts."""
    no_kernel = llama_config(head_dim=6)  # as on a GPU
    pair = ModelPair(save_model(tmp_path, no_kernel))
    rows: list[int] = []
    attention = functional.scaled_dot_product_attention

    def counted(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        rows.append(query.shape[2])
        return attention(query, *args, **kwargs)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", counted)
    monkeypatch.setattr(tree_attention, "MAX_SCORES_OF_TORCH", 4 * len(PROMPT) * 4)
    acquired = pair.model.acquire()
    pair.run(acquired, PROMPT[:4])
    logits = pair.run(acquired, PROMPT[4:-1], node_token_ids=PROMPT[-1:], node_parents=[ROOT])
    assert rows == [4] * 2 + [4, 4, 1] * 2  # in two layers each
    for row in range(len(logits)):
        pair.check(logits[row], PROMPT[: 5 + row])


@pytest.mark.parametrize("kind", ["gemma2 by torch", "gpt_oss by torch"])
def test_size_of_attention_score_matrices_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Attention takes as many rows at a time as fit, with the same logits."""
    pair = ModelPair(save_model(tmp_path, FAMILIES[kind]))
    monkeypatch.setattr(tree_attention, "MAX_SCORES", 4 * len(PROMPT) * 3)
    acquired = pair.model.acquire()
    sizes: list[int] = []
    weights = Scoring.weights

    def counted(self: Scoring, products: Tensor, visible: Tensor) -> Tensor:
        sizes.append(products.numel())
        return weights(self, products, visible)

    monkeypatch.setattr(Scoring, "weights", counted)
    pair.check(pair.run(acquired, PROMPT)[-1], PROMPT)
    assert len(sizes) > 2 and max(sizes) <= 4 * len(PROMPT) * 3
