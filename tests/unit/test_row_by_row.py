"""Models that run through transformers' code give a row the same bits whatever is beside it.

The sizes are such that torch's kernels do not: their sums depend on the number of rows, and their
activation functions on where the last vector ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    Gemma2Config,
    GPT2Config,
    GptOssConfig,
    GraniteMoeConfig,
    MixtralConfig,
    PhimoeConfig,
    PretrainedConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
    Starcoder2Config,
)

from draftloop.runtime import cpu_linear
from draftloop.runtime.cpu_elementwise import Elementwise, Functions
from draftloop.runtime.cpu_parameters import Matrix, Stack
from draftloop.runtime.forward import Forward
from draftloop.runtime.model import LanguageModel
from tests.support.families import WIDE
from tests.support.toy_model import load_model, save_model

pytestmark = pytest.mark.skipif(cpu_linear.UNIT is None, reason="no kernel for this machine")
LARGE: dict[str, Any] = {
    **WIDE, "hidden_size": 512, "intermediate_size": 1000, "initializer_range": 0.05,
}  # fmt: skip
HEADS: dict[str, Any] = {**LARGE, "head_dim": 64, "num_attention_heads": 8}
EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
GPT2_SIZES: dict[str, Any] = {"n_embd": 512, "n_head": 8, "n_layer": 2, "n_positions": 128}
KINDS: dict[str, PretrainedConfig] = {
    "matrices of Conv1D": GPT2Config(vocab_size=96, eos_token_id=0, **GPT2_SIZES),
    "a smooth activation": Gemma2Config(**HEADS),
    "matrices with biases": Starcoder2Config(**LARGE),
    "experts": MixtralConfig(**HEADS, **EXPERTS),
    "many experts": Qwen3MoeConfig(
        **HEADS, moe_intermediate_size=200, num_experts=16, num_experts_per_tok=4
    ),
    "experts by columns": GptOssConfig(**{**HEADS, "intermediate_size": 1024}, **EXPERTS),
    "experts in parallel": GraniteMoeConfig(**LARGE, **EXPERTS),
    "a router that is a linear layer": PhimoeConfig(**HEADS, **EXPERTS),
    # One value for each row, so that all values are in one vector.
    "a gate before an expert": Qwen2MoeConfig(
        **LARGE,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=200,
        shared_expert_intermediate_size=200,
    ),
}
TEXT = [5 + 7 * place % 90 for place in range(120)]


def logits_in_chunks(model: LanguageModel, rows: int) -> Tensor:
    """The logits of TEXT, run with `rows` rows at a time."""
    slot = model.acquire()
    try:
        parts = [TEXT[start : start + rows] for start in range(0, len(TEXT), rows)]
        return torch.cat([model.forward([Forward(model, slot, part)])[0] for part in parts])
    finally:
        model.cache.release(slot)


@pytest.mark.parametrize("quantization", ["", "int8", "w8a8", "w4a8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_have_the_same_bits_alone_and_together(
    tmp_path: Path, kind: str, dtype: str, quantization: str
) -> None:
    folder = save_model(tmp_path, KINDS[kind])
    model = load_model(folder, dtype=dtype, quantization=quantization)
    assert model.row_by_row
    alone = logits_in_chunks(model, 1)
    for rows in (2, 5, 17, 40, 64, 120):
        assert torch.equal(logits_in_chunks(model, rows), alone), rows


def test_model_with_interdependent_rows_is_recognized(tmp_path: Path) -> None:
    """With torch's own kernels the model is served, and a log line reports it."""
    folder = save_model(tmp_path, KINDS["experts"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_linear, "UNIT", None)
        model = load_model(folder)
    assert (
        not torch.equal(logits_in_chunks(model, 17), logits_in_chunks(model, 1))
        and not model.row_by_row
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("kind", [nn.SiLU(), nn.GELU(approximate="tanh"), nn.Mish()], ids=str)
def test_activation_does_not_depend_on_its_position(
    kind: nn.Module, threads: int, dtype: torch.dtype
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for columns in (8, 1000, 4099, 13824):
            values = (3 * torch.randn(48, columns)).to(dtype)
            activation = Elementwise(kind)
            alone = torch.cat([activation(row[None]) for row in values])
            assert torch.equal(activation(values), alone)
            assert torch.equal(activation(values[:7].T).T, alone[:7])
            torch.testing.assert_close(alone, kind(values))
    finally:
        torch.set_num_threads(before)


def test_replaced_parameters_behave_like_the_originals() -> None:
    # The wrappers that replace parameters compute the same as the parameters did.
    weight, bias, x = torch.randn(3, 6, 8), torch.randn(6), torch.randn(5, 8)
    stack: Any = Stack(weight.clone())
    assert stack.shape == weight.shape and torch.equal(stack[torch.tensor([0, 2])], weight[[0, 2]])
    for index in (0, torch.tensor(2)):
        expected = functional.linear(x, weight[index], bias)
        torch.testing.assert_close(functional.linear(x, stack[index], bias), expected)
        torch.testing.assert_close(functional.linear(x, stack[index], bias=bias), expected)
    with pytest.raises(AttributeError, match="each matrix by itself"):
        stack.sum()  # the packed matrices exist only once
    columns: Any = Stack(weight.mT.contiguous())
    torch.testing.assert_close(x @ columns[1], x @ weight[1].T)
    torch.testing.assert_close(torch.matmul(x, columns[1]), x @ weight[1].T)
    matrix: Any = Matrix(weight[0].bfloat16())
    assert matrix.float() is matrix.type(torch.float32) and matrix.to(torch.bfloat16) is matrix
    expected = functional.linear(x, weight[0].bfloat16().float())
    torch.testing.assert_close(functional.linear(x, matrix.float()), expected)
    assert torch.equal(torch.softmax(matrix, 0), torch.softmax(matrix.dense, 0))
    assert torch.equal(matrix[1], matrix.dense[1])


def test_replaced_torch_functions_match_the_originals() -> None:
    """Called with anything but a tensor they are torch's own."""
    functions, x = Functions(torch), torch.linspace(-3, 3, 77)
    assert torch.equal(functions.sigmoid(x)[:40], functions.sigmoid(x[:40]))
    out = torch.empty(77)
    functions.sigmoid(x, out=out)
    assert torch.equal(out, torch.sigmoid(input=x)) and torch.equal(functions.sigmoid(input=x), out)
    assert functions.float32 is torch.float32 and isinstance(x, functions.Tensor)
