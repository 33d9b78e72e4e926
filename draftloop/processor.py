"""Which processor a service runs its model on: services on one keep each other waiting."""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def processor_id(device: str) -> str:
    """Of a device of this machine, by a name that no other device of it has; 16 hex digits.

    The same in all processes, in containers too, until the machine starts anew.
    """
    return hashlib.sha256(f"{_machine()} {device}".encode()).hexdigest()[:16]


def _machine() -> str:
    """Where the system does not tell, the network card's address: without one, of this process."""
    try:
        return BOOT_ID.read_text(encoding="ascii")
    except OSError:
        return str(uuid.getnode())
