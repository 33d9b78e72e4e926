"""If no context length is set, sessions are as long as memory allows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import psutil
import pytest
import torch

from draftloop.errors import StartupFailure
from draftloop.runtime import memory_left
from draftloop.runtime.attention_shapes import AttentionShapes
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.memory_left import GIB
from draftloop.runtime.room import UNASKED, Room, enough_memory
from tests.support.toy_model import llama_config, load_model, save_model

CPU = torch.device("cpu")
LONG = 131072
# 128 KiB per token, as in a model with eight billion parameters.
ROOM = Room(
    layers=32,
    kept=AttentionShapes(kv_heads=8, head_dim=128),
    dtype=torch.bfloat16,
    device=CPU,
)


def options(**changes: float) -> ModelOptions:
    return ModelOptions(**{"folder": Path(), "max_sessions": 4, **changes})  # type: ignore[arg-type]


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(memory_left, "free_bytes", lambda device: request.param)


@pytest.mark.parametrize("free", [10 * GIB], indirect=True)
@pytest.mark.parametrize(
    ("changes", "requested", "length"),
    [
        ({}, LONG, 16320),  # 8 GiB for four sessions: 16384 rows each, 64 of them for drafts
        ({"memory_share": 0.4}, LONG, 8128),
        ({"max_sessions": 1}, LONG, 65472),
        ({"max_sessions": 1024}, LONG, UNASKED),
        ({"tensor_parallel_size": 2}, LONG, 8128),  # two ranks that share one memory
        ({}, 8000, 8000),
        ({"context_length": 32768}, 32768, 32768),
    ],
)
def test_context_is_limited_by_memory(
    free: None, changes: dict[str, float], requested: int, length: int
) -> None:
    assert ROOM.context(options(**changes), requested) == length


@pytest.mark.parametrize("free", [0], indirect=True)
def test_short_contexts_are_not_reduced(free: None) -> None:
    assert ROOM.context(options(), 2048) == 2048


@pytest.mark.parametrize("free", [10 * GIB], indirect=True)
@pytest.mark.parametrize(("device", "rows"), [("cpu", 16384), ("cuda", None)])
def test_kept_texts_take_a_share_of_cpu_memory(free: None, device: str, rows: int | None) -> None:
    """On other devices all memory is allocated at once."""
    room = dataclasses.replace(ROOM, device=torch.device(device))
    assert room._kept_rows(options()) == rows


def test_gpu_out_of_memory_at_startup_is_reported() -> None:
    with pytest.raises(StartupFailure) as caught, enough_memory("cuda:1"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert str(caught.value) == (
        "device: cuda:1 has too little memory for this model beside its keys and values; lower "
        "max_sessions or context_length (CUDA out of memory. Tried to allocate 2.00 GiB.)"
    )


def test_insufficient_memory_is_reported_with_its_size(tmp_path: Path) -> None:
    folder = save_model(tmp_path, llama_config(max_position_embeddings=1 << 40))
    with pytest.raises(StartupFailure) as caught:
        load_model(folder, context_length=1 << 40)
    assert str(caught.value) == (
        "max_sessions: 4 sessions of 1099511627776 tokens take 1,048,576.0 GiB of keys and "
        "values, which cpu has not; lower max_sessions or context_length"
    )


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 100),
        ({"memory.max": "max"}, 100),
        (
            {"memory.max": "80", "memory.current": "50", "memory.stat": "anon 9\ninactive_file 7"},
            37,
        ),
        ({"memory.max": "900", "memory.current": "50"}, 100),
        ({"memory.max": "40", "memory.current": "50"}, 0),
        (
            {
                "memory/memory.limit_in_bytes": "80",
                "memory/memory.usage_in_bytes": "50",
                "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 7",
            },
            37,
        ),
        ({"memory/memory.limit_in_bytes": str((1 << 63) - 4096)}, 100),
    ],
)
def test_free_memory_respects_the_container_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    memory = psutil.virtual_memory()._replace(available=100)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(memory_left, "CGROUP", tmp_path)
    assert memory_left.free_bytes(CPU) == expected
