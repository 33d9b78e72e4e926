"""Identifies the processor on which a service runs its model: services that share one compete."""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def processor_id(device: str) -> str:
    """Id of a device of this machine, unique among all machines; 16 hex digits.

    It is the same in all processes, also in containers, until the machine restarts.
    """
    return hashlib.sha256(f"{_machine()} {device}".encode()).hexdigest()[:16]


def _machine() -> str:
    """The boot id; without one, the network card's address, which may be random per process."""
    try:
        return BOOT_ID.read_text(encoding="ascii")
    except OSError:
        return str(uuid.getnode())
