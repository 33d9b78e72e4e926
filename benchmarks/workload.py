"""Continuations in the order in which they are measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.prompts import Material, Prompt

FIRST_SEED = 2026


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One continuation, the same for every system; it goes on after end-of-text tokens."""

    prompt: Prompt
    tokens: int
    temperature: float
    seed: int
    workload: str = "completion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Prompts in turn; each pass over them has its own seeds."""

    name: str
    material: Material
    tokens: int
    temperatures: tuple[float, ...]
    passes: int = 6  # the time is usually up earlier

    def repetitions(self) -> Iterator[list[Case]]:
        """One prompt each: at the first temperature, and every second time at all of them."""
        prompts = self.material.measured
        for number in range(self.passes * len(prompts)):
            turn, place = divmod(number, len(prompts))
            prompt = prompts[place]
            temperatures = self.temperatures[: 1 if (turn + place) % 2 else None]
            yield [self._case(prompt, t, FIRST_SEED + number) for t in temperatures]

    def warm_up(self) -> Case:
        """A short case that is not measured."""
        return Case(
            prompt=self.material.measured[0],
            tokens=12,
            temperature=self.temperatures[0],
            seed=0,
            workload=self.name,
        )

    def warming(self) -> Iterator[Case]:
        """Cases that fill a warm pool: as long as the measured ones, with other prompts."""
        for number, prompt in enumerate(self.material.warming):
            yield self._case(prompt, self.temperatures[0], number)

    def _case(self, prompt: Prompt, temperature: float, seed: int) -> Case:
        return Case(
            prompt=prompt,
            tokens=self.tokens,
            temperature=temperature,
            seed=seed,
            workload=self.name,
        )
