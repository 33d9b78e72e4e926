"""GPUs that are missing, or too old."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from draftloop.errors import StartupFailure
from draftloop.runtime.gpus import require_compiled_for, require_gpu
from tests.support.toy_model import load_model, save_model

GPU = torch.device("cuda")


def fake_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)


def refusal(name: str) -> str:
    with pytest.raises(StartupFailure) as caught:
        require_gpu(name)
    return str(caught.value)


def test_cpu_build_of_torch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may have a GPU nevertheless."""
    fake_gpus(monkeypatch, 0)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    error = refusal("cuda")
    assert error.startswith(f"device: cuda is not available: torch {torch.__version__} is a build")


def test_driver_error_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus(monkeypatch, 0)

    def fail() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old\n(found version 11040).")

    monkeypatch.setattr(torch.cuda, "init", fail)
    assert refusal("cuda:0") == (
        "device: cuda:0 is not available: The NVIDIA driver on your system is too old (found "
        "version 11040)."
    )


@pytest.mark.parametrize(("count", "visible"), [(1, "cuda:0"), (4, "cuda:0 to cuda:3")])
def test_gpu_index_out_of_range_is_refused(
    monkeypatch: pytest.MonkeyPatch, count: int, visible: str
) -> None:
    """CUDA would report a device failure, and the service would end without a clear reason."""
    fake_gpus(monkeypatch, count)
    require_gpu("cuda")
    require_gpu(f"cuda:{count - 1}")
    error = refusal(f"cuda:{count}")
    assert f"device: cuda:{count} is not available: this process sees {visible} (" in error


def test_old_gpu_runs_without_padded_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps are not tried, as Triton may abort the process on such a GPU."""
    model = load_model(save_model(tmp_path))
    assert model._lean is not None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setitem(sys.modules, "draftloop.runtime.cuda_graph", None)  # its import would fail
    model._lean.pad_steps(model.cache, 4)
    assert model._lean.steps is None
    output = capsys.readouterr().out
    assert "forwards run without padded steps" in output
    assert "Triton needs a GPU of compute capability 8.0; this one has 7.5" in output


def test_current_gpus_are_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability in ((8, 0), (9, 0), (12, 1)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        require_compiled_for(GPU)
