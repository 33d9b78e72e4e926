"""Describes the machine and the models of a run."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from draftloop import __version__
from draftloop.completion import DeploymentInfo
from draftloop.config import REPOSITORY
from draftloop.cost_line import cost_line
from draftloop.model_info import ModelInfo

CPU_FILE = Path("/proc/cpuinfo")
# CPU flags that decide how fast bfloat16 is on x86.
TELLING_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
PACKAGES = ("torch", "transformers", "grpcio", "protobuf", "llvmlite")


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe_machine(device: str = "cpu") -> dict[str, Any]:
    """Hardware, software and load, without anything that identifies the machine.

    `gpu` describes the GPU that the models use; None if `device` is the CPU. Raises StartupFailure
    if the machine has no such device.
    """
    cpu = _cpu_lines()
    flags = cpu.get("flags", "").split()
    return {
        "cpu": cpu.get("model name", platform.processor()),
        "cores": available_cores(),
        "cpu_flags": {flag: flag in flags for flag in TELLING_FLAGS},
        "gpu": _gpu(device),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_average": [round(load, 2) for load in psutil.getloadavg()],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "draftloop": __version__,
        "packages": {package: version(package) for package in PACKAGES},
        "commit": _commit(),
    }


def describe_deployment(title: str, info: DeploymentInfo) -> dict[str, Any]:
    """The measured models, as the services describe them."""
    return {
        "title": title,
        "verifier": describe_model(info.verifier),
        "drafter": describe_model(info.drafter) if info.drafter else None,
    }


def describe_model(info: ModelInfo) -> dict[str, Any]:
    """A served model and the costs of its forwards."""
    line = cost_line(info.cost_curve)
    return {
        "name": info.model_name,
        "fingerprint": info.model_fingerprint,
        "parameters": info.parameters,
        "cost_inflation": info.cost_inflation,
        "dtype": info.dtype,
        "quantization": info.quantization,
        "device": info.device,
        "forward_ms_by_tokens": {
            str(rows): round(time / 1e6, 3)
            for rows, time in zip(line.rows, line.times, strict=True)
        },
    }


def _gpu(device: str) -> dict[str, Any] | None:
    """Torch's description of the GPU; None for the CPU."""
    if device == "cpu":
        return None
    import torch  # takes seconds to import, and is not needed for a CPU

    from draftloop.runtime.gpus import require_gpu

    require_gpu(device)
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "cuda": torch.version.cuda,
    }


def _cpu_lines() -> dict[str, str]:
    if not CPU_FILE.exists():
        return {}
    first = CPU_FILE.read_text(encoding="utf-8").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _commit() -> str:
    """The commit of the code, marked if tracked files differ from it."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()
