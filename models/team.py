"""Trains one model on a CPU with several processes, which share forwards and updates.

All state (weights, momenta, gradients) is in shared memory. A shared counter hands out forwards. A
step has two barriers. Before the first, every worker publishes the gradients of the micro-batches
that it took. Before the second, each worker updates the parameters that it owns. A worker that
other programs slow down takes fewer micro-batches.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from draftloop.runtime.vector_unit import vector_unit
from models import attention
from models.checkpoint import Checkpoint
from models.muon import share_out, update
from models.report import Report
from models.schedule import Phase
from models.setting import Setting


@dataclass(slots=True)
class Shared:
    """State that the workers of one phase share."""

    gradients: Tensor  # [workers, parameters]
    losses: Tensor  # [workers], sums over the micro-batches taken
    counter: Any  # micro-batches taken since the phase began
    barrier: Barrier


class Worker:
    """One process of a phase; rank 0 also reports and saves."""

    def __init__(
        self, rank: int, setting: Setting, phase: Phase, state: Checkpoint, shared: Shared
    ) -> None:
        self.rank, self.setting, self.phase = rank, setting, phase
        self.state, self.shared = state, shared
        self.parameters = dict(state.model.named_parameters())
        self.owned = share_out(state.model, setting.workers)[rank]
        self.spans = spans(self.parameters)
        objective = setting.objective
        self.objective = torch.compile(objective) if setting.compiled else objective
        self.first_window = state.tokens // phase.length

    def run(self) -> None:
        """Trains until the phase is over."""
        end = self.setting.schedule.end(self.phase)
        steps = -(-(end - self.state.tokens) // self.phase.step_tokens)
        report = Report(self.setting, self.state) if self.rank == 0 else None
        for step in range(steps):
            self.publish(self.accumulate(step))
            self.shared.barrier.wait()
            self.update_owned()
            self.state.tokens += self.phase.step_tokens
            self.state.step += 1
            loss = self.shared.losses.sum().item() / self.phase.micros
            self.shared.barrier.wait()
            if report:
                report.step(loss, self.phase)

    def accumulate(self, step: int) -> float:
        """Runs backward passes over the micro-batches that it takes; returns the sum of losses."""
        model, phase = self.state.model, self.phase
        model.zero_grad(set_to_none=True)
        total = torch.zeros(())
        while (micro := self.take(step)) is not None:
            first = self.first_window + step * phase.batch + micro * phase.micro
            tokens = self.setting.windows.batch(first, phase.micro, phase.length)
            mixed = self.setting.dtype != torch.float32
            with torch.autocast("cpu", dtype=self.setting.dtype, enabled=mixed):
                loss = self.objective(model, tokens)
            (loss / phase.micros).backward()
            total += loss.detach()
        return total.item()

    def take(self, step: int) -> int | None:
        """The next micro-batch of `step` that is free; None when all are taken."""
        with self.shared.counter.get_lock():
            taken = self.shared.counter.value - step * self.phase.micros
            if taken >= self.phase.micros:
                return None
            self.shared.counter.value += 1
            return int(taken)

    def publish(self, loss: float) -> None:
        """Writes this worker's gradients and loss to shared memory."""
        row = self.shared.gradients[self.rank]
        for name, parameter in self.parameters.items():
            span = row[self.spans[name]]
            if parameter.grad is None:
                span.zero_()
            else:
                span.copy_(parameter.grad.flatten())
        self.shared.losses[self.rank] = loss

    def update_owned(self) -> None:
        """Updates the owned parameters by the summed gradients."""
        factor = self.setting.schedule.factor(self.state.tokens)
        for name in self.owned:
            parameter = self.parameters[name]
            gradient = self.shared.gradients[:, self.spans[name]].sum(0).view_as(parameter)
            momenta = self.state.momenta[name]
            step = self.state.step + 1
            update(name, parameter, gradient, momenta, self.setting.rates, factor, step)


def spans(parameters: dict[str, torch.nn.Parameter]) -> dict[str, slice]:
    """Slice of each parameter's gradient in a row of `Shared.gradients`."""
    ends: dict[str, slice] = {}
    offset = 0
    for name, parameter in parameters.items():
        ends[name] = slice(offset, offset + parameter.numel())
        offset += parameter.numel()
    return ends


def share_memory(state: Checkpoint) -> None:
    """Moves weights and momenta to memory shared by all workers."""
    state.model.share_memory()
    for slots in state.momenta.values():
        for tensor in slots.values():
            tensor.share_memory_()


def end_with_parent() -> None:
    """Ends this worker when the process that started it dies.

    Otherwise it would continue after a kill, and overwrite what the same command's next run saves.
    """

    def watch(parent: BaseProcess) -> None:
        parent.join()
        os._exit(1)

    parent = parent_process()
    if parent is not None:
        threading.Thread(target=watch, args=(parent,), daemon=True).start()


def work(rank: int, setting: Setting, phase: Phase, state: Checkpoint, shared: Shared) -> None:
    """Body of one worker process, with a single thread."""
    end_with_parent()
    torch.set_num_threads(1)
    unit = vector_unit()
    if unit is None or not unit.tiles:  # with AMX, it would round the factors to bfloat16
        torch.set_float32_matmul_precision("medium")  # oneDNN's own float32 beats MKL's on AMD
    state.model.set_attn_implementation(attention.NAME)
    state.model.train()
    Worker(rank, setting, phase, state, shared).run()
    if rank == 0:
        state.save(setting.file)


@contextmanager
def own_settings() -> Iterator[None]:
    """Restores torch's settings, which `work` changes, for a worker without a process."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


def run_phase(setting: Setting, phase: Phase, state: Checkpoint) -> Checkpoint:
    """Runs one phase to its end; returns the state that it saved in `setting.file`."""
    workers = setting.workers
    size = sum(parameter.numel() for parameter in state.model.parameters())
    context = mp.get_context("spawn")
    shared = Shared(
        gradients=torch.zeros(workers, size),
        losses=torch.zeros(workers),
        counter=context.Value("q", 0),
        barrier=context.Barrier(workers),
    )
    if workers == 1:
        with own_settings():
            work(0, setting, phase, state, shared)
    else:
        share_memory(state)
        shared.gradients.share_memory_()
        shared.losses.share_memory_()
        spawn(work, args=(setting, phase, state, shared), nprocs=workers)
    return Checkpoint.load(setting.file)
