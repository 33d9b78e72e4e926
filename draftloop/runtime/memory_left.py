"""Memory that nobody uses yet."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

GIB = 1 << 30
CGROUP = Path("/sys/fs/cgroup")  # where a container sees its own limit
# Names of the limit, of what is used, and in the statistics of what can be had again of that: of
# cgroup v2, and of v1, which machines of before still run; there "no limit" is a huge one.
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
    """What is free on a device; on a CPU what can be had without swapping, in a container of its.

    Pages of files that are cached there can be had, too, and on a GPU what torch keeps for later.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    available = int(psutil.virtual_memory().available)
    for limit_name, used_name, statistics, cached in VERSIONS:
        limit = _of_cgroup(limit_name)
        if limit is not None:
            used = _of_cgroup(used_name) or 0
            return max(0, min(available, limit - used + _cached(statistics, cached)))
    return available


def _of_cgroup(name: str) -> int | None:
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
