"""The packed kernel against its definition, bit for bit: a chain of float32 fused multiply-adds.

A product of two bfloat16 is exact in float32, so there the chain is a plain running sum. Where the
processor multiplies pairs (AVX512-BF16) or tiles (AMX), it has its own order along k; there sums
are compared within rounding, and all else as strictly. For integers see `test_cpu_integers`.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from draftloop.runtime import cpu_linear
from draftloop.runtime.cpu_linear import PackedLinear, packable, replace_linears
from draftloop.runtime.cpu_parameters import LayerMatrix
from draftloop.runtime.quantization import FORMATS, Format, quantized
from tests.support.matrices import random_layer, same_bits

needs_kernel = pytest.mark.skipif(cpu_linear.UNIT is None, reason="no kernel for this machine")
DTYPES = (torch.bfloat16, torch.float32)
WAYS = [(dtype, form) for dtype in DTYPES for form in (None, *FORMATS.values())]
KERNEL = "draftloop.runtime.cpu_linear_kernel"


@pytest.fixture(autouse=True, params=["tiles", "dots", "lines"])
def unit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way to multiply that the processor has."""
    way, own_unit = request.param, cpu_linear.UNIT
    if way != "lines" and not (own_unit and getattr(own_unit, way)):
        pytest.skip(f"no {way} on this machine")
    if own_unit is not None:
        chosen = own_unit._replace(tiles=way == "tiles", dots=way == "dots")
        monkeypatch.setattr(cpu_linear, "UNIT", chosen)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Two threads, whatever the machine; the number is restored after the test."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


def running_sum(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    total = bias.float().repeat(x.shape[0], 1)
    for k in range(x.shape[1]):
        total += x[:, k : k + 1].float() * weight[:, k].float()
    return total.to(x.dtype)


def packed_layer(outputs: int, depth: int, dtype: torch.dtype, form: Format | None) -> PackedLinear:
    """A packed layer, quantized if a format is given."""
    weight, bias = random_layer(outputs, depth, dtype)
    return PackedLinear(quantized(weight, form) if form else weight, bias, dtype)


def uses_own_summation_order(depth: int) -> bool:
    """Whether the processor adds products of bfloat16 in its own order."""
    unit = cpu_linear.UNIT
    return unit is not None and (unit.dots or (unit.tiles and depth % 32 == 0))


@needs_kernel
@pytest.mark.parametrize(
    ("outputs", "depth"), [(64, 2), (1, 34), (200, 96), (515, 1110), (9, 2080)]
)
def test_bfloat16_output_is_the_running_sum_rounded_once(outputs: int, depth: int) -> None:
    weight, bias = random_layer(outputs, depth)
    x = torch.randn(30, depth).bfloat16()
    output, expected = PackedLinear(weight, bias)(x), running_sum(x, weight, bias)
    if uses_own_summation_order(depth):
        torch.testing.assert_close(output, expected, rtol=2**-7, atol=1e-5)
    else:
        assert same_bits(output, expected)


@needs_kernel
def test_float32_output_is_close_to_double_precision() -> None:
    weight, bias = random_layer(130, 333, torch.float32)
    x = torch.randn(5, 333)
    exact = x.double() @ weight.double().T + bias
    torch.testing.assert_close(PackedLinear(weight, bias)(x).double(), exact, rtol=0, atol=1e-4)


@needs_kernel
@pytest.mark.parametrize(("dtype", "form"), WAYS)
def test_row_has_the_same_bits_in_every_batch(dtype: torch.dtype, form: Format | None) -> None:
    packed = packed_layer(1100, 256, dtype, form)
    x = torch.randn(70, 256).to(dtype)
    single_rows = torch.cat([packed(row[None]) for row in x])
    for rows in (*range(1, 30), 48, 70):
        assert same_bits(packed(x[:rows]), single_rows[:rows]), rows
        assert same_bits(packed(x[-rows:]), single_rows[-rows:]), rows


@needs_kernel
@pytest.mark.parametrize(("dtype", "form"), WAYS)
def test_bits_do_not_depend_on_the_number_of_threads(
    dtype: torch.dtype, form: Format | None
) -> None:
    packed = packed_layer(1100, 256, dtype, form)
    x = torch.randn(20, 256).to(dtype)
    expected = packed(x)
    for threads in (1, 3, 5):
        torch.set_num_threads(threads)
        assert same_bits(packed(x), expected), threads


@needs_kernel
@pytest.mark.parametrize(
    ("depth", "form"), [(1110, None), *((2080, form) for form in (None, *FORMATS.values()))]
)
def test_rows_beyond_the_job_size_are_computed(depth: int, form: Format | None) -> None:
    packed = packed_layer(64, depth, torch.bfloat16, form)
    kernel = pytest.importorskip(KERNEL)
    x = torch.randn(2 * kernel.JOB_ROWS + 3, depth).bfloat16()
    assert same_bits(packed(x), torch.cat([packed(row[None]) for row in x]))


@needs_kernel
@pytest.mark.parametrize(("dtype", "form"), WAYS)
@pytest.mark.parametrize("rows", [1, 7, 200])
@pytest.mark.parametrize("has_next", [False, True])
def test_gated_product_matches_torch(
    rows: int, dtype: torch.dtype, form: Format | None, has_next: bool
) -> None:
    """SiLU of the outputs' first half times their second half, in one call.

    The next matrix only determines what is prefetched and changes no result.
    """
    width, depth = 3 * 64, 592
    packed = packed_layer(2 * width, depth, dtype, form)
    x = torch.randn(rows, depth).to(dtype) / 8
    gate, up = packed(x).split(width, dim=1)
    gated = torch.empty(rows, width, dtype=dtype)
    kernel = pytest.importorskip(KERNEL)
    call = kernel.CALL.pack(
        x.data_ptr(), *packed.addresses, packed.bits, 0, rows, packed.steps, 2 * width,
        torch.get_num_threads(), gated.data_ptr(),
        *((packed.packed.data_ptr(), packed.steps, 6) if has_next else (0, 0, 0)),
    )  # fmt: skip
    kernel.compiled(cpu_linear.UNIT, dtype, form)(call)
    torch.testing.assert_close(gated, functional.silu(gate) * up)


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
def test_narrow_vectors_give_the_same_bits(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, bias = random_layer(203, 66, dtype)
    x = torch.randn(15, 66).to(dtype)
    expected = PackedLinear(weight, bias)(x)
    units = pytest.importorskip("draftloop.runtime.vector_unit")
    monkeypatch.setattr(cpu_linear, "UNIT", units.AVX2)
    assert same_bits(PackedLinear(weight, bias)(x), expected)


@needs_kernel
def test_kernel_does_not_change_torchs_results() -> None:
    """Guards the tile configuration, which torch's kernels use in the same threads."""
    weight, bias = random_layer(512, 256)
    packed = PackedLinear(weight, bias)
    x = torch.randn(40, 256).bfloat16()
    kernel_output, torch_output = packed(x), functional.linear(x, weight)
    for _ in range(3):
        assert same_bits(functional.linear(x, weight), torch_output)
        assert same_bits(packed(x), kernel_output)


@needs_kernel
def test_rounding_to_bfloat16_matches_torch() -> None:
    """Guards ties, overflow to infinity and the NaN that rounding up would turn into zero."""
    large, tie = 3.3895e38, 2.0**-8
    x = torch.tensor(
        [[1, tie], [1 + 2 * tie, tie], [large, large], [-large, -large], [0, -0.0]]
    ).bfloat16()
    if not uses_own_summation_order(2):  # which treats subnormal values as zeros
        x = torch.cat([x, torch.tensor([[1e-40, 0]]).bfloat16()])
    x = torch.cat([x, torch.tensor([[torch.nan, 1.0], [torch.inf, -torch.inf]]).bfloat16()])
    expected = (x[:, :1].float() + x[:, 1:].float()).bfloat16()
    output = PackedLinear(torch.ones(1, 2).bfloat16())(x)
    torch.testing.assert_close(output, expected, rtol=0, atol=0, equal_nan=True)


@needs_kernel
def test_leading_dimensions_strides_and_empty_batches_are_supported() -> None:
    weight, bias = random_layer(96, 64)
    packed = PackedLinear(weight, bias)
    x = torch.randn(3, 64, 5).bfloat16().transpose(1, 2)
    assert same_bits(packed(x), packed(x.reshape(-1, 64)).view(3, 5, 96))
    assert packed(x[0, 0]).shape == (96,)
    assert packed(x[:0]).shape == (0, 5, 96)


@needs_kernel
def test_unsupported_input_is_refused() -> None:
    packed = PackedLinear(random_layer(64, 32)[0])
    for x in (torch.zeros(1, 32), torch.zeros(1, 30).bfloat16(), torch.zeros(1, 32, device="meta")):
        with pytest.raises(ValueError, match=r"expected a torch\.bfloat16 CPU tensor \[\.\.\., 32"):
            packed(x)
    with pytest.raises(ValueError, match="cannot pack"):
        PackedLinear(torch.zeros(4, 4, dtype=torch.float16))


@needs_kernel
def test_copied_layer_does_not_use_the_originals_memory() -> None:
    """Guards the addresses: a copied layer must not read the original's memory."""
    weight, bias = random_layer(96, 64)
    packed = PackedLinear(weight, bias)
    x = torch.randn(3, 64).bfloat16()
    expected = packed(x)
    copied = copy.deepcopy(packed)
    packed.packed.zero_()
    assert same_bits(copied(x), expected)


class TiedModel(nn.Module):
    """A layer that cannot be packed among others, and a head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.layers = nn.ModuleList([nn.Linear(32, 32), nn.Linear(32, 33), nn.Linear(33, 32)])
        self.head = nn.Linear(32, 100, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


@needs_kernel
def test_replace_linears_keeps_outputs_and_frees_old_weights() -> None:
    model = TiedModel().bfloat16().eval()
    tokens = torch.arange(7)
    before = model(tokens)
    old = weakref.ref(model.layers[0].weight)
    assert replace_linears(model) == 3
    assert type(model.layers[2]) is nn.Linear, "33 inputs are no whole number of words"
    assert isinstance(model.head, PackedLinear)
    assert old() is None
    torch.testing.assert_close(model(tokens), before)


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs", [1, 13, 300])
def test_code_may_multiply_by_the_weight_of_a_packed_layer(
    dtype: torch.dtype, outputs: int
) -> None:
    """As LongCat-Flash's router does, in float32. Only the dtype is known without unpacking it."""
    layer = nn.Linear(48, outputs).to(dtype)
    matrix = LayerMatrix(packed_layer := PackedLinear(layer.weight, layer.bias))
    assert (matrix.dtype, tuple(matrix.shape)) == (dtype, (outputs, 48))
    assert "dense" not in vars(matrix)
    assert torch.equal(packed_layer.unpacked(), layer.weight)
    x = torch.randn(5, 48)
    product = functional.linear(x, matrix.type(torch.float32))  # type: ignore[arg-type]
    torch.testing.assert_close(product, functional.linear(x, layer.weight.float()))
    torch.testing.assert_close(matrix[0], layer.weight[0])


def test_linear_layers_stay_with_torch_without_llvmlite(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CPUs without the vector instructions, and on other architectures."""
    import draftloop.runtime

    monkeypatch.setitem(sys.modules, KERNEL, None)
    monkeypatch.delattr(draftloop.runtime, "cpu_linear_kernel", raising=False)
    spec = importlib.util.spec_from_file_location("cpu_linear_alone", cpu_linear.__file__)
    assert spec is not None
    assert spec.loader is not None
    reloaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reloaded)
    model = TiedModel().bfloat16()
    assert not reloaded.available()
    assert reloaded.replace_linears(model) == 0
    assert type(model.head) is nn.Linear


def test_packable_reports_what_the_kernel_supports() -> None:
    available = cpu_linear.UNIT is not None
    assert packable(torch.zeros(3, 4, dtype=torch.bfloat16)) is available
    assert packable(torch.zeros(3, 5)) is available
    assert not packable(torch.zeros(3, 5, dtype=torch.bfloat16))
    assert not packable(torch.zeros(3, 4, dtype=torch.float64))
    assert not packable(torch.zeros(3, 4, device="meta"))
