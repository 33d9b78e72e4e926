"""A resumable state of a run, written so that a kill at any moment leaves a whole file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM


@dataclass(slots=True)
class Checkpoint:
    """Where a run stands: weights, momenta by parameter name, tokens seen, wall seconds spent."""

    model: LlamaForCausalLM
    momenta: dict[str, dict[str, torch.Tensor]]
    tokens: int
    step: int
    seconds: float

    def save(self, file: Path) -> None:
        """Writes beside `file`, then renames over it."""
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        state = {
            "config": self.model.config.to_dict(),
            "weights": self.model.state_dict(),
            "momenta": self.momenta,
            "tokens": self.tokens,
            "step": self.step,
            "seconds": self.seconds,
        }
        with partial.open("wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, file)

    @classmethod
    def load(cls, file: Path) -> Checkpoint:
        """The state in `file`; the model is float32 on the CPU."""
        state = torch.load(file, map_location="cpu", weights_only=True)
        model = LlamaForCausalLM(LlamaConfig.from_dict(state["config"]))
        model.load_state_dict(state["weights"])
        model.tie_weights()
        return cls(model, state["momenta"], state["tokens"], state["step"], state["seconds"])


def load_model(file: Path) -> LlamaForCausalLM:
    """The model of the checkpoint `file`."""
    return Checkpoint.load(file).model
