"""A resumable state of a run, written so that a kill at any moment leaves a complete file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from models.layout import checkpoint_file
from models.muon import new_momenta

BUNDLED = "bundled"  # as the start of a run: the shipped weights, without momenta


@dataclass(slots=True)
class Checkpoint:
    """State of a run: weights, momenta by parameter name, tokens seen, wall seconds spent.

    `compiling` is the part of `seconds` until the first record of each phase. It does not count for
    the minutes of a run.
    """

    model: LlamaForCausalLM
    momenta: dict[str, dict[str, torch.Tensor]]
    tokens: int
    step: int
    seconds: float
    compiling: float = 0.0

    @property
    def trained_s(self) -> float:
        """Seconds that count for a run limited by minutes."""
        return self.seconds - self.compiling

    @classmethod
    def begun(
        cls, model: LlamaForCausalLM, momenta: dict[str, dict[str, torch.Tensor]] | None = None
    ) -> Checkpoint:
        """The state before the first step; momenta are zero if none are given."""
        return cls(model, momenta or new_momenta(model), tokens=0, step=0, seconds=0.0)

    def save(self, file: Path) -> None:
        """Writes a file beside `file`, then renames it. Raises OSError if there is no room."""
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        state = {
            "config": self.model.config.to_dict(),
            "weights": self.model.state_dict(),
            "momenta": self.momenta,
            "tokens": self.tokens,
            "step": self.step,
            "seconds": self.seconds,
            "compiling": self.compiling,
        }
        try:
            with partial.open("wb") as stream:
                torch.save(state, stream)
                stream.flush()
                os.fsync(stream.fileno())
        except (OSError, RuntimeError) as error:  # torch's RuntimeError does not name the file
            partial.unlink(missing_ok=True)
            raise OSError(f"{file} cannot be written, so it stays as it was: {error}") from error
        os.replace(partial, file)

    @classmethod
    def load(cls, file: Path) -> Checkpoint:
        """Loads the state in `file`; the model is float32 on the CPU."""
        state = torch.load(file, map_location="cpu", weights_only=True)
        model = LlamaForCausalLM(LlamaConfig.from_dict(state["config"]))
        model.load_state_dict(state["weights"])
        model.tie_weights()
        counts = {name: state[name] for name in ("tokens", "step", "seconds")}
        compiling = state.get("compiling", 0.0)  # older states have none
        return cls(model, state["momenta"], **counts, compiling=compiling)


def state_of_run(run: str, bundled: Path) -> Checkpoint:
    """The model and momenta that the run `run` left; for `BUNDLED`, the model in `bundled`.

    Counts start at zero, since a run that starts from another one has its own schedule.
    """
    if run == BUNDLED:
        model: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(bundled, dtype=torch.float32)
        return Checkpoint.begun(model)
    left = Checkpoint.load(checkpoint_file(run))
    return Checkpoint.begun(left.model, left.momenta)


def load_model(file: Path) -> LlamaForCausalLM:
    """The model in the checkpoint `file`."""
    return Checkpoint.load(file).model
