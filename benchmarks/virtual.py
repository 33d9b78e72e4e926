"""Virtual time: the bundled pair's forwards take the time that a machine's measured costs say.

Forwards take what a cost curve says, and exchanges and planning take fixed times; nothing else
takes time. So policies are compared by their decisions, with the costs of any machine. Forwards can
also be made as irregular as on a machine that others share (`Noise`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from drafter_service.shared import StrategyFactory
from drafter_service.strategies import Strategy
from draftloop.cost_line import cost_line
from draftloop.model_info import CostPoint
from draftloop.runtime.cost_curve import CostCurve
from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.model import LanguageModel
from draftloop.tree import ServiceTimings
from phrase_store.config import PhraseSettings
from phrase_store.store import PhraseStore

T = TypeVar("T")

NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """Milliseconds in addition to forwards: per verification, draft, draft forward and plan.

    The defaults are those measured by `benchmarks.run` at 300M (two Zen 5 cores, decision 13).
    """

    verify: float = 1.3
    draft: float = 1.5
    forward: float = 0.05
    plan: float = 0.15


class Clock:
    """Replaces the module `time`; only `advance` and `set_to` change its time."""

    def __init__(self) -> None:
        self._now_ns = 0

    def perf_counter_ns(self) -> int:
        """Nanoseconds since the beginning."""
        return self._now_ns

    def perf_counter(self) -> float:
        """Seconds since the beginning."""
        return self._now_ns / 1e9

    def advance(self, nanoseconds: float) -> None:
        """Adds to the time."""
        self._now_ns += int(nanoseconds)

    def set_to(self, nanoseconds: int) -> None:
        """Sets the time, even back: simultaneous work of two machines is done in turn here."""
        self._now_ns = nanoseconds


class GivenCurve(CostCurve):
    """A cost curve that this process's forwards do not correct, only those in virtual time."""

    def __init__(self, given: tuple[CostPoint, ...]) -> None:
        super().__init__(given)
        self.line = cost_line(given)  # uncorrected

    def observe(self, rows: int, context: int, batch: int, nanoseconds: int) -> None:
        """Does nothing."""

    def record(self, rows: int, context: int, nanoseconds: int) -> None:
        """Corrects the curve by a forward of one session in virtual time."""
        super().observe(rows, context, 1, nanoseconds)


class Noise:
    """Factors by which forwards take longer, as on a machine that others share.

    Log-normal, with standard deviation `spread` of the logarithm: half of the variance is new in
    every forward, the other half changes slowly, over about SLOW_FORWARDS forwards.
    """

    SLOW_FORWARDS = 50

    def __init__(self, spread: float) -> None:
        self.spread = spread
        self._random = random.Random(0)
        self._slow = 0.0

    def next_factor(self) -> float:
        """The next forward's factor."""
        part = self.spread * math.sqrt(0.5)
        kept = 1 - 1 / self.SLOW_FORWARDS
        self._slow = kept * self._slow + math.sqrt(1 - kept**2) * self._random.gauss(0, part)
        return math.exp(self._slow + self._random.gauss(0, part))


class World:
    """The bundled pair with the costs of a profile, a clock, and the state of a drafter process.

    `pair` has the target, the draft model and smaller ones, like the result of `bundled_pair`.
    `drafts_ahead`: the drafter has its own machine, and continues while the target verifies.
    `noise`: spread of the forwards' times, see `Noise`; then forwards correct the cost curves.
    """

    def __init__(
        self,
        pair: Mapping[str, LanguageModel],
        around: Around,
        *,
        drafts_ahead: bool = False,
        noise: float = 0.0,
    ) -> None:
        self.target, self.draft, *self.smaller = pair.values()
        self.drafts_ahead = drafts_ahead
        self.around = around
        self.clock = Clock()
        self.shared = StrategyFactory(PhraseStore(PhraseSettings(phrases_url="memory://")))
        self._curves: dict[LanguageModel, GivenCurve] = {}
        self._noise = Noise(noise)
        # by how much noise has lengthened the forwards that were waited for, so far
        self.noise_ns = 0

    def cost(self, model: LanguageModel, curve: tuple[CostPoint, ...]) -> None:
        """Makes forwards of `model` take the time that `curve` says."""
        model.costs = self._curves[model] = GivenCurve(curve)

    @torch.inference_mode()
    def run(self, task: Task[T], timings: ServiceTimings | None, around_ms: float = 0.0) -> T:
        """The task's result; each of its forwards takes `around_ms` longer than its curve says.

        Without timings, it takes no time.
        """
        try:
            wish = next(task)
            while True:
                assert isinstance(wish, Forward), "no session is told that it is alone"
                (logits,) = wish.model.forward([wish])
                if timings is not None:
                    taken = self._forward_ns(wish)
                    self.clock.advance(taken + NS_PER_MS * around_ms)
                    timings.forward_ns += taken
                    timings.forwards += 1
                wish = task.send(logits)
        except StopIteration as done:
            result: T = done.value
            return result

    def _forward_ns(self, forward: Forward) -> int:
        curve, rows = self._curves[forward.model], forward.rows
        expected = curve.line.nanoseconds(rows)
        if not self._noise.spread:
            return int(expected)
        taken = int(expected * self._noise.next_factor())
        curve.record(rows, forward.slot.length, taken)
        self.noise_ns += taken - int(expected)
        return taken

    def run_beside(
        self, task: Task[T], timings: ServiceTimings, since_ns: int, around_ms: float = 0.0
    ) -> int:
        """Runs a task from `since_ns` on, beside everything else; returns when it has ended.

        Afterwards it is no later than before.
        """
        now, noise_ns = self.clock.perf_counter_ns(), self.noise_ns
        self.clock.set_to(since_ns)
        self.run(task, timings, around_ms)
        ended_ns = self.clock.perf_counter_ns()
        self.clock.set_to(now)
        self.noise_ns = noise_ns
        return ended_ns

    def meanwhile(self, strategy: Strategy, since_ns: int, around_ms: float) -> int:
        """Lets the drafter draft ahead from `since_ns` until now; returns its number of forwards.

        The next request to it waits until the last of these has ended.
        """
        if not self.drafts_ahead:
            return 0
        now, timings = self.clock.perf_counter_ns(), ServiceTimings()
        task = strategy.draft_ahead(lambda: self.clock.perf_counter_ns() < now)
        ended_ns = self.run_beside(task, timings, since_ns, around_ms)
        self.clock.set_to(max(now, ended_ns))
        return timings.forwards
