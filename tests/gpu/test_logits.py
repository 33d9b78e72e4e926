"""A GPU's logits are those of a CPU within the rounding of the format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from draftloop.errors import StartupFailure
from draftloop.request import SamplingParameters
from draftloop.runtime.forward import Forward
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.quantization import FORMATS
from draftloop.runtime.sampling import Sampler
from draftloop.tree import ROOT
from models.layout import DRAFTER_DIR, VERIFIER_DIR
from tests.gpu.conftest import Tell
from tests.support.device import DEVICE
from tests.support.families import FAMILIES
from tests.support.toy_model import llama_config, load_model, save_model

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(150)]
TEXT = [17, 940, 33, 5, 221, 1033, 87, 402, 9, 11, 870, 2048, 77, 3, 641, 50, 51, 1200, 4, 8]
# Nodes and parents of a draft with three branches, one of which forks.
NODES, PARENTS = [5, 6, 7, 8, 9, 10, 11, 12], [ROOT, ROOT, 0, 0, 2, 4, 1, ROOT]
PATH = [0, 2, 4, 5]
# Relative to the norm. TF32 has ten bits and would differ by some thousandths.
FLOAT32, BFLOAT16, EIGHT_BITS, FOUR_BITS = 2e-5, 3e-2, 1.5e-1, 5e-1


def load_model_on(
    folder: Path, dtype: str = "float32", device: str = DEVICE, **more: Any
) -> LanguageModel:
    options = ModelOptions(folder=folder, dtype=dtype, device=device, max_sessions=3)
    return LanguageModel(replace(options, **more))


@pytest.fixture(scope="module", params=[VERIFIER_DIR, DRAFTER_DIR], ids=lambda path: path.name)
def folder(request: pytest.FixtureRequest) -> Path:
    chosen: Path = request.param
    return chosen


@pytest.fixture(scope="module")
def cpu_model(folder: Path) -> Tensor:
    return tree_logits(load_model_on(folder, device="cpu"))


def tree_logits(model: LanguageModel) -> Tensor:
    """float32 [1 + nodes, vocabulary] on the CPU: the last token and a draft in one forward."""
    slot = model.acquire()
    try:
        model.forward([Forward(model, slot, TEXT[:-1])])
        return model.forward([Forward(model, slot, TEXT[-1:], NODES, PARENTS)])[0].cpu()
    finally:
        model.cache.release(slot)


def sequential_logits(model: LanguageModel, path: Sequence[int]) -> Tensor:
    """The rows of the text's last token and of a path of nodes, run token by token."""
    slot = model.acquire()
    try:
        model.forward([Forward(model, slot, TEXT[:-1])])
        tokens = [TEXT[-1], *(NODES[node] for node in path)]
        rows = [model.forward([Forward(model, slot, [token])])[0] for token in tokens]
        return torch.cat(rows).cpu()
    finally:
        model.cache.release(slot)


def relative_distance(actual: Tensor, expected: Tensor) -> float:
    """The distance relative to the norm of `expected`."""
    return float((actual - expected).norm() / expected.norm())


def test_float32_products_do_not_use_tf32() -> None:
    """TF32 would round the factors to ten bits."""
    assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "plain"])
@pytest.mark.parametrize(("dtype", "most"), [("float32", FLOAT32), ("bfloat16", BFLOAT16)])
def test_device_logits_equal_cpu_logits(
    folder: Path, cpu_model: Tensor, dtype: str, most: float, graphs: bool, tell: Tell
) -> None:
    """Rows of prompts and of draft trees; the tree's rows also equal token-by-token decoding."""
    model = load_model_on(folder, dtype, cuda_graphs=graphs)
    assert model.device.type == DEVICE and model.cache.keys[0].device.type == DEVICE
    tree, path = tree_logits(model), sequential_logits(model, PATH)
    rows = [0, *(node + 1 for node in PATH)]
    way = "in steps" if graphs else "plainly"
    tell(f"{folder.name} {dtype} {way}: "
         f"{relative_distance(tree, cpu_model):.1e} from the CPU's float32, "
         f"{relative_distance(path, tree[rows]):.1e} from tree to token, "
         f"{'row by row' if model.row_by_row else 'rounding depends on the batch'}")  # fmt: skip
    assert relative_distance(tree, cpu_model) < most
    assert relative_distance(path, tree[rows]) < most


@pytest.mark.parametrize("quantization", FORMATS)
def test_quantized_weights(cpu_model: Tensor, folder: Path, quantization: str) -> None:
    """Near the unquantized weights, and within rounding of the CPU with the same weights."""
    model = load_model_on(folder, "bfloat16", quantization=quantization)
    device_logits = tree_logits(model)
    cpu_logits = tree_logits(
        load_model_on(folder, "bfloat16", device="cpu", quantization=quantization)
    )
    assert relative_distance(device_logits, cpu_model) < (
        FOUR_BITS if quantization == "w4a8" else EIGHT_BITS
    )
    assert relative_distance(device_logits, cpu_logits) < 2 * BFLOAT16


def test_prompt_in_pieces_gives_the_same_logits() -> None:
    model = load_model_on(VERIFIER_DIR)
    prompt = [token + shift for shift in range(12) for token in TEXT]
    whole, pieces = model.acquire(), model.acquire()
    (expected,) = model.forward([Forward(model, whole, prompt)])
    parts = [
        model.forward([Forward(model, pieces, prompt[start : start + 97])])[0]
        for start in range(0, len(prompt), 97)
    ]
    assert relative_distance(torch.cat(parts), expected) < FLOAT32


def test_sessions_share_a_forward() -> None:
    """Each session sees only its own text."""
    model = load_model_on(VERIFIER_DIR)
    slots = [model.acquire() for _ in range(3)]
    texts = [TEXT, TEXT[::-1], TEXT[5:]]
    shared = model.forward([Forward(model, *pair) for pair in zip(slots, texts, strict=True)])
    for slot, text, actual in zip(slots, texts, shared, strict=True):
        slot.truncate(0)
        (expected,) = model.forward([Forward(model, slot, text)])
        assert relative_distance(actual, expected) < FLOAT32


def test_cost_inflation_layers_are_on_the_models_device() -> None:
    plain, inflated = load_model_on(VERIFIER_DIR), load_model_on(VERIFIER_DIR, inflate="60M")
    assert inflated.parameters > 2 * plain.parameters
    assert relative_distance(tree_logits(inflated), tree_logits(plain)) < FLOAT32


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "llama"])
def test_models_of_other_kinds(family: str, tmp_path: Path) -> None:
    """Models that run through transformers' code, and windows, caps and sinks."""
    folder = save_model(tmp_path, FAMILIES[family])
    text, nodes, parents = [5, 17, 3, 88, 41, 2, 60, 9, 33, 12, 71], [1, 2, 3], [ROOT, ROOT, 0]
    outputs = []
    for device in (DEVICE, "cpu"):
        model = load_model(folder, device=device)
        slot = model.acquire()
        model.forward([Forward(model, slot, text[:-1])])
        outputs.append(model.forward([Forward(model, slot, text[-1:], nodes, parents)])[0].cpu())
    assert relative_distance(*outputs) < FLOAT32


SHAPES = (
    SamplingParameters(temperature=0.7, seed=11),
    SamplingParameters(temperature=1.0, seed=12, top_p=0.9),
    SamplingParameters(temperature=0.8, seed=13, top_k=40, min_p=0.02),
    SamplingParameters(temperature=0.9, seed=14, repetition_penalty=1.2, presence_penalty=0.3),
    SamplingParameters(temperature=0.0, logit_bias=((17, 2.0), (200, -50.0))),
)


@pytest.mark.parametrize("parameters", SHAPES, ids=range(len(SHAPES)))
def test_sampled_tokens_equal_those_of_a_cpu(parameters: SamplingParameters) -> None:
    """With the same noise, a drafter on a CPU and a verifier on a GPU agree."""
    rows, vocabulary = 64, 4096
    logits = 3 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(5))
    positions, paths = range(40, 40 + rows), [[row % 7] * (row % 3) for row in range(rows)]
    chosen, scores = [], []
    for device in (DEVICE, "cpu"):
        sampler = Sampler(parameters, vocabulary, torch.device(device))
        sampler.observe_prompt(TEXT)
        sampler.observe_output(TEXT[:5])
        on_device = logits.to(device)
        chosen.append(sampler.choose(on_device, positions, paths))
        scores.append(sampler.scores(on_device, positions, paths).cpu())
    assert chosen[0] == chosen[1]
    torch.testing.assert_close(*scores, rtol=1e-5, atol=1e-5)


def test_out_of_memory_error_names_the_size(tmp_path: Path) -> None:
    """Half as much again as the device has; a CPU would allocate memory that it does not have."""
    per_token, sessions = 2 * 2 * 2 * 8 * 4, 4
    most = 1 << 48 if DEVICE == "cpu" else torch.cuda.get_device_properties(0).total_memory
    context = int(1.5 * most) // (per_token * sessions)
    folder = save_model(tmp_path, llama_config(max_position_embeddings=1 << 40))
    with pytest.raises(StartupFailure) as caught:
        load_model(folder, device=DEVICE, context_length=context)
    message = str(caught.value)
    assert message.startswith(f"max_sessions: 4 sessions of {context} tokens take ")
    assert f"GiB of keys and values, which {DEVICE} has not; lower max_sessions" in message
