"""The name of the thread that runs models, for modules that must not import torch."""

from __future__ import annotations

import threading

NAME = "engine"


def is_running() -> bool:
    """Whether this process has an engine thread."""
    return any(thread.name == NAME for thread in threading.enumerate())
