"""Eight- and four-bit weights against their definition, bit for bit.

That is exact sums of integers, scaled. The order of summation does not matter, so results are the
same on every CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from draftloop.runtime import cpu_linear
from draftloop.runtime.cpu_linear import PackedLinear, packable, replace_linears
from draftloop.runtime.forward import Forward
from draftloop.runtime.quantization import (
    FORMATS,
    Format,
    Linear,
    Quantized,
    QuantizedLinear,
    quantize,
    quantized,
    rounded,
    stacked,
)
from tests.support.matrices import random_layer, same_bits
from tests.support.toy_model import load_model, save_model

needs_kernel = pytest.mark.skipif(cpu_linear.UNIT is None, reason="no kernel for this machine")
DTYPES = (torch.bfloat16, torch.float32)
SPAN, GROUP = 512, 128  # values of k per scale, with eight- and with four-bit weights
LARGEST = {8: (127, -127), 4: (7, -8)}
every_format = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


def expected_output(x: Tensor, weight: Quantized, bias: Tensor) -> Tensor:
    """Each span of a row in integers: 16 bits, of which the largest value takes 15, or up to 127.

    Double precision holds a product of two float32; the low bits of the sum matter in ties only.
    """
    total = bias.float().repeat(len(x), 1)
    span = SPAN if weight.format.weights == 8 else GROUP
    for number, start in enumerate(range(0, x.shape[1], span)):
        part = x[:, start : start + span].float()
        largest = part.abs().amax(1, keepdim=True)
        if weight.format.activations == 16:
            exponent = torch.frexp(largest)[1].clamp(min=-111)
            scale = torch.ldexp(torch.ones(len(x), 1, dtype=torch.double), exponent - 15)
            integers = (part.double() / scale).round().clamp(max=2**15 - 1)
        else:
            largest = largest.clamp(min=1e-30)
            scale, inverse = largest / 127, torch.full_like(largest, 127) / largest
            integers = (part * inverse).round().double()
        exact = (integers @ weight.values[:, start : start + span].double().T).float()
        scales = weight.scales[:, 0 if weight.format.weights == 8 else number]
        scaled = (exact * scale.float()).double() * scales.double()
        total = (scaled + total.double()).float()
    return total.to(x.dtype)


@needs_kernel
@every_format
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "depth"), [(64, 16), (200, 96), (515, 1104), (9, 2080)])
def test_output_is_the_scaled_integer_sum(
    outputs: int, depth: int, dtype: torch.dtype, form: Format
) -> None:
    weight, bias = random_layer(outputs, depth, dtype)
    matrix = quantized(weight, form)
    packed = PackedLinear(matrix, bias, dtype)
    for rows in (*range(1, 25), 41, 130):
        x = (torch.randn(rows, depth) * torch.randn(rows, 1).exp()).to(dtype)
        assert same_bits(packed(x), expected_output(x, matrix, bias)), rows


@needs_kernel
@every_format
def test_largest_sums_do_not_overflow(form: Format) -> None:
    largest, smallest = LARGEST[form.weights]
    groups = 1 if form.weights == 8 else 1024 // GROUP
    values = torch.full((3, 1024), largest, dtype=torch.int8)
    values[1] = smallest
    matrix = Quantized(values, torch.ones(3, groups), form)
    x = torch.full((2, 1024), 1 - 2**-20)
    x[1] = -x[1]
    out = PackedLinear(matrix, None, torch.float32)(x)
    assert same_bits(out, expected_output(x, matrix, torch.zeros(3)))
    torch.testing.assert_close(out[0, 0].item(), largest * 1024.0, rtol=1e-4, atol=0)


@needs_kernel
@every_format
@pytest.mark.parametrize("dtype", DTYPES)
def test_tiny_infinite_and_nan_values_affect_only_their_row(
    dtype: torch.dtype, form: Format
) -> None:
    """Such values affect only their own row; rows with infinities give NaN."""
    weight, bias = random_layer(64, 1024, dtype)
    matrix = quantized(weight, form)
    packed = PackedLinear(matrix, bias, dtype)
    x = torch.randn(6, 1024).to(dtype)
    x[1] = 0
    x[2] = 1e-40
    x[3, 700] = torch.inf
    x[4, 3] = torch.nan
    out = packed(x)
    assert out[3:5].isnan().all()
    for row in (0, 1, 2, 5):
        assert same_bits(out[row : row + 1], expected_output(x[row : row + 1], matrix, bias)), row
    assert same_bits(out[1], bias.float().to(dtype))


@needs_kernel
@every_format
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_vector_units_give_the_same_bits(
    dtype: torch.dtype, form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, bias = random_layer(203, 608, dtype)
    matrix, x = quantized(weight, form), torch.randn(15, 608).to(dtype)
    expected = PackedLinear(matrix, bias, dtype)(x)
    units = pytest.importorskip("draftloop.runtime.vector_unit")
    own_unit = cpu_linear.UNIT
    for unit in (units.AVX2, units.AVX512) if own_unit and own_unit.lanes == 16 else (units.AVX2,):
        monkeypatch.setattr(cpu_linear, "UNIT", unit)
        assert same_bits(PackedLinear(matrix, bias, dtype)(x), expected)


def test_quantization_uses_a_scale_per_output() -> None:
    weight = torch.randn(30, 64) * torch.logspace(-6, 6, 30)[:, None]
    weight[7] = 0
    matrix = quantized(weight, FORMATS["int8"])
    largest = matrix.values.abs().amax(1)
    assert largest[7] == 0
    assert (largest[torch.arange(30) != 7] == 127).all()
    assert ((matrix.dense - weight).abs() <= 0.5001 * matrix.scales).all()


def test_four_bit_weights_have_a_scale_per_group() -> None:
    """Of three groups the last is shorter. Values beyond the range of a scale are clipped."""
    weight = torch.randn(70, 2 * GROUP + 48) * torch.logspace(-6, 6, 70)[:, None]
    weight[7] = 0
    weight[9, GROUP : 2 * GROUP] *= 1000
    matrix = quantized(weight, FORMATS["w4a8"])
    assert matrix.values.shape == weight.shape
    assert matrix.scales.shape == (70, 3)
    assert matrix.values.min() == -8
    assert matrix.values.max() == 7
    assert not matrix.dense[7].any()
    for group in range(3):
        part = slice(group * GROUP, (group + 1) * GROUP)
        scales, group_weights = matrix.scales[:, group, None], weight[:, part]
        torch.testing.assert_close(matrix.dense[:, part], matrix.values[:, part] * scales)
        clipped = group_weights.clamp(-8 * scales, 7 * scales)
        assert ((matrix.dense[:, part] - clipped).abs() <= 0.5001 * scales).all()
    error, spread = (matrix.dense - weight).norm(dim=1), weight.norm(dim=1)
    assert (error <= 0.15 * spread).all()
    plain = weight.unflatten(1, (1, -1)).abs().amax(2) / 7.5  # one scale for all of an output
    coarse = (weight / plain).round().clamp(-8, 7) * plain
    assert error[9] < 0.9 * (coarse - weight).norm(dim=1)[9]


@pytest.mark.parametrize(("end", "largest"), [(-8, 7), (7, 7)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_four_bit_weights_are_recovered_exactly(dtype: torch.dtype, end: int, largest: int) -> None:
    """If a group's values reach an end of the range, as in checkpoints, its scale is found."""
    values = torch.randint(1 - largest, largest, (40, 3 * GROUP), dtype=torch.int8)
    values[:, ::GROUP] = end
    scales = torch.rand(40, 3) + 0.01
    original = Quantized(values, scales, FORMATS["w4a8"])
    recovered = quantized(original.dense.to(dtype), original.format)
    assert torch.equal(recovered.values, values)
    torch.testing.assert_close(recovered.scales, scales, rtol=2**-8, atol=0)


@every_format
@pytest.mark.parametrize("dtype", [torch.float16, *DTYPES])
def test_quantized_linear_in_torch_matches_the_matrix(dtype: torch.dtype, form: Format) -> None:
    weight, bias = random_layer(96, 64, torch.float32)
    matrix = quantized(100 * weight, form)
    layer = QuantizedLinear(matrix, bias, dtype)
    x = torch.randn(5, 64).to(dtype)
    rounded_input = rounded(x) if form.activations == 8 else x
    expected = rounded_input.float() @ matrix.dense.T + bias
    tol = 2.0 if form.weights == 8 else 8.0  # one scale, or one per group: weights round too
    torch.testing.assert_close(layer(x), expected.to(dtype), rtol=2**-7, atol=tol)
    if dtype in DTYPES and packable(matrix.values):
        packed = PackedLinear(matrix, bias, dtype)
        torch.testing.assert_close(packed(x), layer(x), rtol=0.02, atol=tol)


def test_float16_partial_sums_do_not_overflow() -> None:
    weight = torch.full((4, 4096), 0.01)
    x = torch.ones(1, 4096).half()
    layer = QuantizedLinear(quantized(weight, FORMATS["int8"]), None, torch.float16)
    torch.testing.assert_close(layer(x), torch.full((1, 4), 40.96).half(), rtol=0.01, atol=0)


@pytest.mark.parametrize("form", [None, *FORMATS.values()], ids=["whole", *FORMATS])
@pytest.mark.parametrize("has_bias", [False, True])
def test_stacked_layers_keep_their_outputs(form: Format | None, has_bias: bool) -> None:
    unquantized = [nn.Linear(160, outputs, bias=has_bias) for outputs in (16, 5)]
    layers: list[Linear] = [*(unquantized if form is None else _rounded(unquantized, form))]
    x = torch.randn(3, 160)
    expected = torch.cat([layer(x) for layer in layers], dim=1)
    torch.testing.assert_close(stacked(layers)(x), expected)


@every_format
def test_all_quantizable_linear_layers_are_quantized(form: Format) -> None:
    model = nn.ModuleDict(
        {"plain": nn.Linear(32, 8), "transposed": Conv1D(8, 48), "odd": nn.Linear(33, 8)}
    ).bfloat16()
    inputs = {name: torch.randn(2, width).bfloat16() for name, width in WIDTHS.items()}
    before = {name: model[name](x) for name, x in inputs.items()}
    quantize(model, form)
    kinds = [QuantizedLinear, QuantizedLinear, nn.Linear]
    assert [type(layer) for layer in model.values()] == kinds
    tol = 0.05 if form.weights == 8 else 0.3
    for name, x in inputs.items():
        torch.testing.assert_close(model[name](x), before[name], rtol=tol, atol=tol)
    if cpu_linear.available():
        assert replace_linears(model) == 2
        for name, x in inputs.items():
            torch.testing.assert_close(model[name](x), before[name], rtol=tol, atol=tol)


def test_lm_head_keeps_eight_bits_and_routers_all() -> None:
    """Some routers are layers, others have one."""
    router = nn.ModuleDict({"classifier": nn.Linear(32, 8)})
    model = nn.ModuleDict({"lm_head": nn.Linear(32, 8), "gate": nn.Linear(32, 8), "router": router})
    quantize(model, FORMATS["w4a8"])
    assert isinstance(model["lm_head"], QuantizedLinear)
    assert model["lm_head"].format == FORMATS["w8a8"]
    assert type(model["gate"]) is type(router["classifier"]) is nn.Linear


@pytest.mark.parametrize("quantization", FORMATS)
def test_model_logits_match_between_torch_and_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: str
) -> None:
    """Other devices run it through torch; both are near the logits of the unquantized model."""
    folder = save_model(tmp_path)
    text = [5 + 7 * place % 90 for place in range(40)]

    def model_logits(quantization: str) -> Tensor:
        model = load_model(folder, quantization=quantization)
        assert model.info().quantization == quantization
        return model.forward([Forward(model, model.acquire(), text)])[0]

    unquantized, through_kernel = model_logits(""), model_logits(quantization)
    monkeypatch.setattr(cpu_linear, "UNIT", None)
    tol = 0.01 if quantization == "int8" else 0.1  # an activation may round to the next integer
    torch.testing.assert_close(model_logits(quantization), through_kernel, rtol=1e-3, atol=tol)
    assert not torch.equal(through_kernel, unquantized)
    assert (through_kernel - unquantized).norm() < APART[quantization] * unquantized.norm()


APART = {"int8": 0.05, "w8a8": 0.05, "w4a8": 0.5}
WIDTHS = {"plain": 32, "transposed": 48, "odd": 33}


def _rounded(layers: list[nn.Linear], form: Format) -> Iterator[QuantizedLinear]:
    for layer in layers:
        yield QuantizedLinear(quantized(layer.weight, form), layer.bias, layer.weight.dtype)
