"""Checkpoints with quantized weights are served with the values that their numbers stand for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftloop.errors import StartupFailure
from draftloop.model_info import model_fingerprint
from draftloop.runtime.dequantized import READ, VERSION
from draftloop.runtime.loading import ModelOptions, load_network
from tests.support.quantized_checkpoints import KINDS, Kind, save_plain, save_quantized
from tests.support.toy_model import load_model


def kind_parameter(name: str) -> Any:
    """A parameter, skipped if this version of transformers does not read the kind."""
    kind = KINDS[name]
    needed = READ.get(kind.said["quant_method"], VERSION)
    skipped = pytest.mark.skipif(needed > VERSION, reason=f"read by transformers from {needed} on")
    return pytest.param(kind, id=name, marks=skipped)


every_kind = pytest.mark.parametrize("kind", [kind_parameter(name) for name in KINDS])


@every_kind
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_dequantized_exactly(kind: Kind, dtype: str, tmp_path: Path) -> None:
    weights = save_quantized(tmp_path, kind)
    plain = save_plain(tmp_path / "plain", kind, weights)
    actual, expected = (
        load_network(ModelOptions(folder=folder, dtype=dtype), torch.device("cpu")).state_dict()
        for folder in (tmp_path, plain)
    )
    assert actual.keys() == expected.keys()
    for name, weight in expected.items():
        assert (actual[name].dtype, True) == (weight.dtype, torch.equal(actual[name], weight)), name


@every_kind
@pytest.mark.parametrize("quantization", ["", "w8a8", "w4a8"])
def test_dequantized_model_is_served_like_any_other(
    kind: Kind, quantization: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Checked against transformers at the start, and quantized again if requested."""
    expected = save_quantized(tmp_path, kind)
    info = load_model(tmp_path, quantization=quantization).info()
    assert info.quantization == quantization
    assert info.model_fingerprint == model_fingerprint(tmp_path)
    output = capfd.readouterr()
    assert "weights were dequantized" in output.out + output.err
    assert info.parameters == sum(weight.numel() for weight in expected.values())


@every_kind
def test_missing_scales_fail_startup(kind: Kind, tmp_path: Path) -> None:
    save_quantized(tmp_path, kind)
    file = tmp_path / "model.safetensors"
    kept = {name: part for name, part in load_file(file).items() if "scale" not in name}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(StartupFailure, match="scale"):
        load_model(tmp_path)


@every_kind
def test_damaged_file_is_reported_in_one_line(kind: Kind, tmp_path: Path) -> None:
    save_quantized(tmp_path, kind)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(StartupFailure, match=r"^model: .* cannot be loaded: .{,300}$"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"quant_method": "bitsandbytes"}, "by bitsandbytes, which is not read; .* one of fp8, "),
        ({"quant_method": "gptq", "bits": 3}, "must say 2, 4 or 8 bits; got 3"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version gemm .* got gemv with 4"),
    ],
)
def test_unsupported_quantization_is_named(
    config: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    save_quantized(tmp_path, dataclasses.replace(KINDS["fp8"], said=config))
    with pytest.raises(StartupFailure, match=f"^model: .*{complaint}"):
        load_model(tmp_path)


def test_stop_tokens_are_read_from_the_generation_config(tmp_path: Path) -> None:
    save_quantized(tmp_path, KINDS["awq"])
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert {7, 9} <= set(load_model(tmp_path).stop_token_ids)


def test_required_transformers_version_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(READ, "fp8", (99, 1))
    save_quantized(tmp_path, KINDS["fp8"])
    with pytest.raises(StartupFailure, match=r"by fp8, .*; pip install 'transformers>=99\.1'"):
        load_model(tmp_path)
