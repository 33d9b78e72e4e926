"""Memory that nobody uses yet."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

GIB = 1 << 30
CGROUP = Path("/sys/fs/cgroup")  # where a container sees its own limit (cgroup v2)


def free_bytes(device: torch.device) -> int:
    """What is free on a device; on a CPU what can be had without swapping, in a container of its.

    Pages of files that are cached there can be had, too, and on a GPU what torch keeps for later.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    available = int(psutil.virtual_memory().available)
    limit = _of_cgroup("memory.max")
    if limit is None:
        return available
    used = _of_cgroup("memory.current") or 0
    return max(0, min(available, limit - used + _cached()))


def _of_cgroup(name: str) -> int | None:
    try:
        text = (CGROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None  # "max" is no limit


def _cached() -> int:
    try:
        lines = (CGROUP / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    known = dict(line.split() for line in lines)
    return int(known.get("inactive_file", 0))
