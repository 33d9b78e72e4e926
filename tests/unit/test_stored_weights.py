"""Weights are counted before they are read, to see whether there is memory for them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from draftloop.errors import StartupFailure
from draftloop.runtime import memory_left
from draftloop.runtime.stored_weights import require_memory, stored_weights, weight_files
from tests.support.quantized_checkpoints import KINDS, save_quantized
from tests.support.toy_model import load_model, save_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_stored_weights_are_not_overcounted(kind: str, tmp_path: Path) -> None:
    """Packed values count as several; apart from scales, never as more than they are."""
    weights = sum(weight.numel() for weight in save_quantized(tmp_path, KINDS[kind]).values())
    counted = sum(stored.weights for stored in stored_weights(tmp_path).values())
    assert 0.45 * weights < counted < 1.2 * weights


def test_too_large_model_is_refused_before_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the process would be killed."""
    monkeypatch.setattr(memory_left, "free_bytes", lambda device: 1000)
    error = r"weights of .* take at least 0\.0 GiB in float32, and cpu has 0\.0 .* or in bfloat16$"
    with pytest.raises(StartupFailure, match=error):
        load_model(save_model(tmp_path))


def test_ranks_share_the_memory_for_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path)
    needed = 2 * sum(stored.weights for stored in stored_weights(tmp_path).values())
    monkeypatch.setattr(memory_left, "free_bytes", lambda device: needed // 2)
    require_memory(tmp_path, torch.bfloat16, CPU, ranks=2)
    with pytest.raises(StartupFailure, match=r"GiB free; serve a smaller model$"):
        require_memory(tmp_path, torch.bfloat16, CPU)


def test_unread_weight_files_are_not_counted(tmp_path: Path) -> None:
    """Some publishers add the same weights under other names."""
    file = save_model(tmp_path) / "model.safetensors"
    before = stored_weights(tmp_path)
    shutil.copy(file, tmp_path / "consolidated.safetensors")
    assert (weight_files(tmp_path), stored_weights(tmp_path)) == ([file], before)
    part = file.rename(tmp_path / "model-00001-of-00001.safetensors")
    index = {"weight_map": dict.fromkeys(before, part.name)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert (weight_files(tmp_path), stored_weights(tmp_path)) == ([part], before)


@pytest.mark.parametrize("index", ["", "[]", "{}", '{"weight_map": []}'])
def test_damaged_index_is_ignored_when_listing_files(index: str, tmp_path: Path) -> None:
    # Loading the model reports the damage.
    file = save_model(tmp_path) / "model.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert weight_files(tmp_path) == [file]
