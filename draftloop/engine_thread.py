"""The thread that runs models, for those who must not import torch to know of it."""

from __future__ import annotations

import threading

NAME = "engine"


def is_running() -> bool:
    """Whether this process has one."""
    return any(thread.name == NAME for thread in threading.enumerate())
