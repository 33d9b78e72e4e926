"""Settings that stay the same during a run."""

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
    """A run's text, objective, rates, and machine."""

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
    minutes: float | None = None  # on a GPU: limits the run instead of its tokens

    def seen(self, tokens: int, seconds: float) -> int:
        """Progress in tokens of the schedule, by tokens or by the minutes that the run has."""
        if self.minutes is None:
            return tokens
        return round(seconds / (60 * self.minutes) * self.schedule.tokens)
