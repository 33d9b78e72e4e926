"""The memory that is still free."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

GIB = 1 << 30
CGROUP = Path("/sys/fs/cgroup")  # where a container sees its own limit
# File names of the limit, the usage and the statistics, and in these the name of reclaimable
# memory: for cgroup v2, and for v1, which older machines still run and where "no limit" is a huge
# number.
VERSIONS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)


def free_bytes(device: torch.device) -> int:
    """Free memory of a device; on CPUs without swapping, and within a container's limit.

    Includes cached pages of files, and on GPUs the memory that torch had cached.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    available = int(psutil.virtual_memory().available)
    for limit_name, used_name, statistics, cached in VERSIONS:
        limit = _read_cgroup(limit_name)
        if limit is not None:
            used = _read_cgroup(used_name) or 0
            return max(0, min(available, limit - used + _cached(statistics, cached)))
    return available


def _read_cgroup(name: str) -> int | None:
    try:
        text = (CGROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None  # "max" is no limit


def _cached(file: str, name: str) -> int:
    try:
        lines = (CGROUP / file).read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    known = dict(line.split() for line in lines)
    return int(known.get(name, 0))
