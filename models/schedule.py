"""Schedule of a run: learning rate, depth, length and batch size by share of its tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of a run, from the previous phase's end until `until` (a share of all tokens)."""

    until: float
    layers: int
    length: int
    batch: int  # sequences per step
    micro: int  # sequences per forward

    @property
    def step_tokens(self) -> int:
        """Tokens per optimiser step."""
        return self.length * self.batch

    @property
    def micros(self) -> int:
        """Forwards per optimiser step."""
        return self.batch // self.micro


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A trapezoid learning rate over `tokens`, cut into phases of growing depth and length."""

    tokens: int
    phases: tuple[Phase, ...]
    warmup: float = 0.01
    decay: float = 0.40

    def factor(self, seen: int) -> float:
        """Learning rate relative to its peak after `seen` tokens."""
        share = seen / self.tokens
        rising = (share + 1e-3) / self.warmup
        falling = (1 - share) / self.decay
        return max(0.0, min(1.0, rising, falling))

    def phase(self, seen: int) -> Phase | None:
        """The phase that trains the token after the first `seen`; None when the run is done."""
        for phase in self.phases:
            if seen < self.end(phase):
                return phase
        return None

    def end(self, phase: Phase) -> int:
        """Number of tokens seen when `phase` is over."""
        return round(phase.until * self.tokens)


def on_accelerator(layers: int) -> tuple[Phase, ...]:
    """The only phase on a GPU, which has room for the longest windows from the start.

    It has one shape, so that it is compiled once.
    """
    return (Phase(until=1.00, layers=layers, length=2048, batch=16, micro=16),)
