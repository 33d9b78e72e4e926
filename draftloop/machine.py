"""Which machine a service runs on: services on one compete for its processors."""

from __future__ import annotations

import functools
import hashlib
import uuid
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def machine_id() -> str:
    """Of all processes of one machine, in containers too, until it starts anew; 16 hex digits.

    Where the system does not tell it is made of the network card's address; of a machine that has
    none every process has another one.
    """
    try:
        known = BOOT_ID.read_text(encoding="ascii")
    except OSError:
        known = str(uuid.getnode())
    return hashlib.sha256(known.encode()).hexdigest()[:16]
