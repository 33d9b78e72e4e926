"""Padded steps on a GPU: a row has the same bits alone, in a draft, in any batch or piece.

The tests of the kernels also run without a GPU, in Triton's interpreter: TRITON_INTERPRET=1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from draftloop.runtime.cpu_stack import StackShape
from draftloop.runtime.cuda_inputs import Inputs, Plan
from draftloop.runtime.forward import Forward
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.model import LanguageModel
from draftloop.tree import ROOT
from models.layout import DRAFTER_DIR, VERIFIER_DIR

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # those of compilers and drivers
]
TEXT = torch.randint(1, 4096, (700,), generator=torch.Generator().manual_seed(1)).tolist()
# A chain of 20 nodes with branches along it, and the places of the chain in the draft.
PARENTS = [max(ROOT, node - 3) for node in range(60)]
CHAIN = list(range(0, 60, 3))
NODES = TEXT[200:260]
FAR = 0.02  # relative to the norm of a row of logits: rounding of bfloat16


@pytest.fixture(
    scope="module",
    params=[(VERIFIER_DIR, "bfloat16"), (VERIFIER_DIR, "float32"), (DRAFTER_DIR, "bfloat16")],
    ids=lambda param: f"{param[0].name}-{param[1]}",
)
def options(request: pytest.FixtureRequest) -> ModelOptions:
    folder, dtype = request.param
    return ModelOptions(folder=folder, dtype=dtype, device="cuda", max_sessions=8)


@pytest.fixture(scope="module")
def model(options: ModelOptions) -> Iterator[LanguageModel]:
    loaded = LanguageModel(options)
    assert (
        loaded._lean is not None and loaded._lean.steps is not None and loaded._lean.steps.recorded
    )
    yield loaded


def prompt_logits(model: LanguageModel, prompt: list[int], pieces: int = 10_000) -> Tensor:
    """The logits of all rows of a prompt that is run in pieces of `pieces` tokens."""
    slot = model.acquire()
    parts = [prompt[start : start + pieces] for start in range(0, len(prompt), pieces)]
    logits = [model.forward([Forward(model, slot, piece)])[0] for piece in parts]
    model.cache.release(slot)
    return torch.cat(logits)


def draft_logits(model: LanguageModel, sessions: int) -> list[Tensor]:
    """The logits of each session's last token and draft nodes; texts have different lengths."""
    slots = [model.acquire() for _ in range(sessions)]
    for place, slot in enumerate(slots):
        model.forward([Forward(model, slot, TEXT[: 99 + 7 * place])])
    logits = model.forward([Forward(model, slot, [TEXT[300]], NODES, PARENTS) for slot in slots])
    for slot in slots:
        model.cache.release(slot)
    return logits


def sequential_logits(model: LanguageModel, place: int) -> Tensor:
    """The same session's last token and the chain of the draft, run token by token."""
    path = [TEXT[300], *(NODES[node] for node in CHAIN)]
    return prompt_logits(model, [*TEXT[: 99 + 7 * place], *path], 1)[-len(path) :]


class TestRows:
    pytestmark = needs_gpu

    def test_model_reports_row_by_row(self, model: LanguageModel) -> None:
        assert model.row_by_row

    def test_prompt_in_pieces_gives_the_same_bits(self, model: LanguageModel) -> None:
        whole = prompt_logits(model, TEXT)
        for pieces in (1, 7, 100, 128, 300):
            tokens = TEXT[: 150 if pieces == 1 else None]
            assert torch.equal(prompt_logits(model, tokens, pieces), whole[: len(tokens)]), pieces

    def test_drafts_and_other_sessions_give_the_same_bits(self, model: LanguageModel) -> None:
        rows = [0, *(node + 1 for node in CHAIN)]
        batched, single = draft_logits(model, 5), draft_logits(model, 1)
        assert torch.equal(batched[0], single[0])
        for place in range(5):
            assert torch.equal(batched[place][rows], sequential_logits(model, place)), place

    def test_every_place_in_a_step_gives_the_same_bits(self, model: LanguageModel) -> None:
        """A node without children has the same logits at every place of a step."""
        slot = model.acquire()
        model.forward([Forward(model, slot, TEXT[:50])])
        logits = model.forward([Forward(model, slot, [], [TEXT[60]] * 64, [ROOT] * 64)])[0]
        model.cache.release(slot)
        assert torch.equal(logits, logits[:1].expand_as(logits))

    def test_recorded_graphs_give_the_same_bits(self, model: LanguageModel) -> None:
        steps = model._lean.steps if model._lean is not None else None
        assert steps is not None
        recorded, body, head = prompt_logits(model, TEXT), steps._body, steps._head
        steps._body, steps._head = steps._step.body, steps._step.head
        try:
            assert torch.equal(prompt_logits(model, TEXT), recorded)
        finally:
            steps._body, steps._head = body, head

    def test_padded_steps_equal_unpadded_forwards(self, model: LanguageModel) -> None:
        padded = prompt_logits(model, TEXT)
        assert model._lean is not None
        steps, model._lean.steps = model._lean.steps, None
        try:
            plain = prompt_logits(model, TEXT)
        finally:
            model._lean.steps = steps
        distance = (padded - plain).norm(dim=-1) / plain.norm(dim=-1)
        limit = FAR if model.options.dtype == "bfloat16" else 1e-4
        assert float(distance.median()) < limit, float(distance.median())

    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
    def test_model_on_another_gpu_than_the_threads(self, model: LanguageModel) -> None:
        second = LanguageModel(replace(model.options, device="cuda:1"))
        assert second._lean is not None and second._lean.steps is not None
        assert second.row_by_row and torch.cuda.current_device() == 0
        assert torch.equal(prompt_logits(second, TEXT).cpu(), prompt_logits(model, TEXT).cpu())

    def test_cuda_graphs_can_be_disabled(self) -> None:
        options = ModelOptions(folder=DRAFTER_DIR, device="cuda", max_sessions=1, cuda_graphs=False)
        loaded = LanguageModel(options)
        assert loaded._lean is not None and loaded._lean.steps is None


KERNELS = ON_GPU or os.environ.get("TRITON_INTERPRET") == "1"


@pytest.mark.skipif(not KERNELS, reason="needs a CUDA device, or TRITON_INTERPRET=1")
@pytest.mark.filterwarnings("ignore")  # numpy's, about values that the interpreter masks afterwards
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "longest"), [(4, 2, 96, 150), (3, 1, 32, 400), (2, 2, 128, 70)]
)
def test_attention(heads: int, kv_heads: int, dim: int, longest: int, window: int | None) -> None:
    """Rows of any length, paths after any prefix, and padding, compared with torch's attention."""
    pytest.importorskip("triton")
    from draftloop.runtime import cuda_rows

    rows, width, room = 6, 5, longest + 40
    shape = StackShape(heads * dim, heads, kv_heads, dim, dim**-0.5, 1e-6)
    generator = torch.Generator().manual_seed(dim)
    keys, values = torch.randn(2, 3, kv_heads, room, dim, generator=generator).to(DEVICE).unbind()
    queries = torch.randn(rows, heads, dim, generator=generator).to(DEVICE)
    prefix = [longest, 1, 64, 33, longest - 3, 7]
    path = [[], [], [66, 69], [40, 41, 44, 60, 61], [longest + 1], []]
    lengths = [longest, 1, 66, 38, longest - 2, 7]
    slots = [2, 0, 1, 1, 2, 0]
    paths = np.array([[*nodes, *[0] * (width - len(nodes))] for nodes in path], np.int32)
    table = np.array([[0] * rows, slots, [0] * rows, lengths, prefix], np.int32)
    inputs = Inputs(rows + 1, width, DEVICE)
    inputs.write(Plan(table, np.arange(rows), paths), 0)
    padded = torch.cat([queries, queries[:1]])
    layer = cuda_rows.CacheLayer(keys, values)
    attended = cuda_rows.attend(padded, inputs, layer, shape, window).view(rows + 1, heads, dim)
    assert not attended[rows].any()
    for row in range(rows):
        places = [*range(min(prefix[row], lengths[row])), *path[row]][-(window or room) :]
        expected = functional.scaled_dot_product_attention(
            queries[row][:, None], keys[slots[row]][:, places], values[slots[row]][:, places],
            enable_gqa=True,
        )[:, 0]  # fmt: skip
        torch.testing.assert_close(attended[row], expected, rtol=1e-4, atol=1e-5)
