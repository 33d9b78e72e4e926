"""On a CPU with our kernels, a row's logits are the same bits whatever else is computed.

This makes plain decoding and every draft agree in bfloat16 too, where near ties are common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from draftloop.runtime import cpu_attention, cpu_linear
from draftloop.runtime.forward import Forward
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.scoring import Scoring
from draftloop.tree import ROOT
from models.layout import DRAFTER_DIR, VERIFIER_DIR

pytestmark = pytest.mark.skipif(cpu_linear.UNIT is None, reason="no kernel for this machine")
TEXT = [17, 940, 33, 5, 221, 1033, 87, 402, 9, 11, 870, 2048, 77, 3, 641, 50, 51, 1200, 4, 8]
# Attention runs over blocks of keys; this text is long enough for several.
LONG = [token + shift for shift in range(12) for token in TEXT]


@pytest.fixture(
    scope="module",
    params=[(VERIFIER_DIR, "bfloat16"), (VERIFIER_DIR, "float32"), (DRAFTER_DIR, "bfloat16")],
    ids=lambda param: f"{param[0].name}-{param[1]}",
)
def model(request: pytest.FixtureRequest) -> LanguageModel:
    folder, dtype = request.param
    return LanguageModel(ModelOptions(folder=folder, dtype=dtype, max_sessions=3))


def forward_logits(
    model: LanguageModel, *forwards: tuple[int, Sequence[int], Sequence[int]]
) -> list[Tensor]:
    """The logits of nodes (tokens, parents) after LONG[:length], all in one forward pass."""
    slots = [model.acquire() for _ in forwards]
    try:
        for slot, (length, _, _) in zip(slots, forwards, strict=True):
            model.forward([Forward(model, slot, LONG[: length - 1])])
        return model.forward(
            [
                Forward(model, slot, LONG[length - 1 : length], nodes, parents)
                for slot, (length, nodes, parents) in zip(slots, forwards, strict=True)
            ]
        )
    finally:
        for slot in slots:
            model.cache.release(slot)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_tree_verification_matches_decoding_token_by_token(
    model: LanguageModel, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, 24))
    tokens = data.draw(st.lists(st.integers(1, 4000), min_size=count, max_size=count))
    parents = [data.draw(st.integers(-1, node - 1)) for node in range(count)]
    length = data.draw(st.integers(2, len(LONG)))
    other = (len(TEXT), [5, 6, 7], [ROOT, ROOT, 1])  # another session shares the forward pass
    verified = forward_logits(model, (length, tokens, parents), other)[0]
    path: list[int] = []
    node = data.draw(st.integers(0, count - 1))
    while node != ROOT:
        path.insert(0, node)
        node = parents[node]
    slot = model.acquire()
    try:
        model.forward([Forward(model, slot, LONG[: length - 1])])
        decoded = [
            model.forward([Forward(model, slot, [token])])[0][0]
            for token in [LONG[length - 1], *(tokens[node] for node in path)]
        ]
    finally:
        model.cache.release(slot)
    for row, logits in zip([0, *(node + 1 for node in path)], decoded, strict=True):
        assert torch.equal(verified[row], logits)


def test_row_decoded_beside_a_prompt_matches_the_row_alone(model: LanguageModel) -> None:
    row_alone = forward_logits(model, (len(TEXT), [5, 6], [ROOT, 0]))[0]
    slot, other = model.acquire(), model.acquire()
    try:
        model.forward([Forward(model, slot, TEXT[:-1])])
        prompt = Forward(model, other, TEXT * 2, logits_from=2 * len(TEXT) - 3)
        decoding = Forward(model, slot, TEXT[-1:], [5, 6], [ROOT, 0], logits_from=1)
        prompt_beside, row_beside = model.forward([prompt, decoding])
        model.cache.release(other)
        other = model.acquire()
        (prompt_alone,) = model.forward(
            [Forward(model, other, TEXT * 2, logits_from=2 * len(TEXT) - 3)]
        )
    finally:
        model.cache.release(slot)
        model.cache.release(other)
    assert torch.equal(row_beside, row_alone[1:]) and torch.equal(prompt_beside, prompt_alone)


@settings(max_examples=12, deadline=None)
@given(sizes=st.lists(st.sampled_from([1, 2, 31, 64, 97, 150]), min_size=1, max_size=6))
def test_prompt_logits_do_not_depend_on_chunk_sizes(model: LanguageModel, sizes: list[int]) -> None:
    """The sizes of pieces depend on measured times, and a reopened session has others.

    With torch's attention for prompts, a text of a benchmark record in bfloat16 came out
    differently with drafts than in plain decoding minutes before.
    """
    ends = [*sorted({end for end in np.cumsum(sizes).tolist() if end < len(LONG)}), len(LONG)]
    whole_slot, chunks_slot = model.acquire(), model.acquire()
    try:
        expected = model.forward([Forward(model, whole_slot, LONG)])[0]
        chunks = [
            model.forward([Forward(model, chunks_slot, LONG[start:end])])[0]
            for start, end in zip([0, *ends], ends, strict=False)
        ]
    finally:
        model.cache.release(whole_slot)
        model.cache.release(chunks_slot)
    assert torch.equal(torch.cat(chunks), expected)


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [2, 3, 5], indirect=True)
@pytest.mark.parametrize("nodes", [0, 24])
def test_logits_do_not_depend_on_the_number_of_threads(
    model: LanguageModel, nodes: int, threads: None
) -> None:
    """Including a team with more members than rows, heads or cores."""
    sessions = [(7, TEXT[:1] * nodes, list(range(ROOT, nodes - 1))), (len(TEXT), [5], [ROOT])]
    together = forward_logits(model, *sessions)
    torch.set_num_threads(1)
    for logits, alone in zip(together, forward_logits(model, *sessions), strict=True):
        assert torch.equal(logits, alone)


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 96), (6, 2, 24), (2, 1, 160)])
@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_matches_torch_within_rounding(
    heads: int, kv_heads: int, dim: int, rows: int, dtype: torch.dtype, threads: None
) -> None:
    """Computed in float32, whatever the format of the cache."""
    torch.manual_seed(rows)
    stored, capacity = 301, 320
    query = torch.randn(1, rows, heads, dim).transpose(1, 2)
    keys, values = torch.randn(2, kv_heads, capacity, dim).to(dtype)
    mask = np.random.default_rng(rows).random((rows, stored)) < 0.7
    mask[:, 0] = True
    expected = functional.scaled_dot_product_attention(
        query, keys[None, :, :stored].float(), values[None, :, :stored].float(),
        attn_mask=torch.from_numpy(mask), enable_gqa=True,
    )  # fmt: skip
    bias = cpu_attention.bias_of(mask, stored)
    output = cpu_attention.attend(query[0], keys, values, bias, stored, Scoring(dim**-0.5))
    torch.testing.assert_close(output.transpose(0, 1), expected[0], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("cap", [None, 0.7, 50.0])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_with_capped_scores_and_sinks(
    cap: float | None, has_sinks: bool, dtype: torch.dtype
) -> None:
    """Scores follow the definition, and a row alone has the same bits as among others."""
    torch.manual_seed(1)
    heads, rows, dim, stored, capacity = 6, 5, 24, 301, 320
    query = torch.randn(heads, rows, dim)
    keys, values = torch.randn(2, 2, capacity, dim).to(dtype)
    sinks = torch.tensor([-float("inf"), -3.0, 0.0, 1.5, 6.0, 40.0]) if has_sinks else None
    scoring = Scoring(1.3, cap, sinks)
    mask = np.random.default_rng(rows).random((rows, stored)) < 0.7
    wide = [part[:, :stored].float().repeat_interleave(3, 0) for part in (keys, values)]
    weights = scoring.weights(query @ wide[0].mT, torch.from_numpy(mask))
    output = cpu_attention.attend(
        query, keys, values, cpu_attention.bias_of(mask, stored), stored, scoring
    )
    torch.testing.assert_close(output.transpose(0, 1), weights @ wide[1], rtol=2e-5, atol=1e-5)
    for row in range(rows):
        alone = cpu_attention.attend(
            query[:, row : row + 1].contiguous(), keys, values,
            cpu_attention.bias_of(mask[row : row + 1], stored), stored, scoring,
        )  # fmt: skip
        assert torch.equal(alone[0], output[row])


def test_unsupported_head_sizes_stay_with_torch() -> None:
    keys = torch.zeros(2, 8, 6)
    assert not cpu_attention.fits(torch.zeros(1, 2, 1, 6), keys)
    assert not cpu_attention.fits(torch.zeros(1, 2, 1, 8), keys.half())
    assert cpu_attention.fits(torch.zeros(1, 2, 1, 8), keys)
