"""What stays the same during a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from models.muon import Rates
from models.packing import Mixture, Windows
from models.schedule import Schedule

Objective = Callable[[LlamaForCausalLM, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a run trains on, for what, how fast, and where."""

    file: Path
    schedule: Schedule
    rates: Rates
    windows: Windows | Mixture
    objective: Objective
    workers: int = 2  # on a CPU
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    compiled: bool = False
    dropout: float = 0.0  # on a GPU
    minutes: float | None = None  # on a GPU, after which the run ends, instead of its tokens

    def seen(self, tokens: int, seconds: float) -> int:
        """How far a run is, in tokens of its schedule: by its own, or by the minutes it has."""
        if self.minutes is None:
            return tokens
        return round(seconds / (60 * self.minutes) * self.schedule.tokens)
