"""Training on one GPU: whole batches at once, with matrices of one shape updated together."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from models.checkpoint import Checkpoint
from models.muon import update_all
from models.report import Report
from models.schedule import Phase
from models.setting import Setting

STEPS_OF_A_RECORD = 20  # reading a loss waits for all work queued on the GPU


class AcceleratorPhase:
    """Trains one phase, from a given state to the phase's end."""

    def __init__(self, setting: Setting, phase: Phase, state: Checkpoint) -> None:
        self.setting, self.phase, self.state = setting, phase, state
        _to_device(state, setting.device)
        self.parameters = dict(state.model.named_parameters())
        objective = setting.objective
        self.objective = torch.compile(objective) if setting.compiled else objective

    def run(self) -> None:
        """Trains until the phase is over, and saves the resulting state."""
        report = Report(self.setting, self.state)
        unread, sum_of_losses = 0, torch.zeros((), device=self.setting.device)
        self.state.model.train()
        for micros in self.batches():
            sum_of_losses += self.accumulate(micros)
            self.update()
            unread += 1
            if unread == STEPS_OF_A_RECORD or self.is_over():
                report.step(sum_of_losses.item() / unread, self.phase, unread)
                unread, sum_of_losses = 0, torch.zeros_like(sum_of_losses)
            if self.is_over():
                break
        self.state.save(self.setting.file)

    def seen(self) -> int:
        """Progress in tokens of the schedule; for runs limited by time, as of the last record."""
        return self.setting.seen(self.state.tokens, self.state.trained_s)

    def is_over(self) -> bool:
        """Whether the phase is over."""
        return self.seen() >= self.setting.schedule.end(self.phase)

    def batches(self) -> Iterator[list[Tensor]]:
        """The micro-batches of every step, prepared while the step before is computed."""
        first = self.state.tokens // self.phase.length
        with ThreadPoolExecutor(1) as ahead:
            made = ahead.submit(self.micros, first)
            for step in count(1):
                micros = made.result()
                made = ahead.submit(self.micros, first + step * self.phase.batch)
                yield micros

    def micros(self, first: int) -> list[Tensor]:
        """The step's micro-batches [micro, length + 1] on the device, from window `first` on."""
        phase = self.phase
        parts = range(first, first + phase.batch, phase.micro)
        rows = [self.setting.windows.batch(part, phase.micro, phase.length) for part in parts]
        if torch.device(self.setting.device).type == "cuda":
            rows = [part.pin_memory() for part in rows]  # allows the copy to run asynchronously
        return [part.to(self.setting.device, non_blocking=True) for part in rows]

    def accumulate(self, micros: list[Tensor]) -> Tensor:
        """Runs backward passes over micro-batches; returns their mean loss, on the device."""
        self.state.model.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.setting.device)
        kind, mixed = torch.device(self.setting.device).type, self.setting.dtype != torch.float32
        for tokens in micros:
            with torch.autocast(kind, dtype=self.setting.dtype, enabled=mixed):
                loss = self.objective(self.state.model, tokens)
            (loss / len(micros)).backward()
            total += loss.detach() / len(micros)
        return total

    def update(self) -> None:
        """Updates all parameters by their gradients."""
        state, setting = self.state, self.setting
        factor = setting.schedule.factor(self.seen())
        update_all(self.parameters, state.momenta, setting.rates, factor, state.step + 1)
        state.tokens += self.phase.step_tokens
        state.step += 1


def add_dropout(model: LlamaForCausalLM, share: float) -> None:
    """Adds dropout to what each layer adds to the residual stream during training.

    Without it, a text that is seen a dozen times is memorized.
    """

    def drop(module: torch.nn.Module, _: object, output: Tensor) -> Tensor:
        return torch.nn.functional.dropout(output, share, module.training)

    for layer in model.model.layers:
        for adding in (layer.self_attn.o_proj, layer.mlp.down_proj):
            adding.register_forward_hook(drop)


def run_phase(setting: Setting, phase: Phase, state: Checkpoint) -> Checkpoint:
    """Runs one phase to its end; returns the state that it saved in `setting.file`."""
    if setting.dropout:
        add_dropout(state.model, setting.dropout)
    AcceleratorPhase(setting, phase, state).run()
    return Checkpoint.load(setting.file)


def _to_device(state: Checkpoint, device: str) -> None:
    state.model.to(device)
    for slots in state.momenta.values():
        slots.update({slot: tensor.to(device) for slot, tensor in slots.items()})
