"""What is continued: held-out prompts, how many tokens, at which temperatures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from draftloop.config import REPOSITORY, bundled_model
from orchestrator.tokenizer import Tokenizer

PROMPTS_FILE = REPOSITORY / "models" / "held_out_prompts.jsonl"
FIRST_SEED = 2026


@dataclass(frozen=True, slots=True)
class Prompt:
    """The beginning of a file that no bundled model was trained on."""

    file: str
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One continuation: every system gets the same; past end-of-text tokens it goes on."""

    prompt: Prompt
    tokens: int
    temperature: float
    seed: int


def held_out_prompts(count: int) -> list[Prompt]:
    """The first prompts of the list; raises ValueError where it has fewer."""
    lines = PROMPTS_FILE.read_text(encoding="utf-8").splitlines()
    if not 1 <= count <= len(lines):
        raise ValueError(f"prompts: must be from 1 to {len(lines)}, got {count}")
    tokenizer = Tokenizer(bundled_model("verifier"))
    entries = [json.loads(line) for line in lines[:count]]
    return [
        Prompt(entry["file"], entry["prompt"], tuple(tokenizer.encode(entry["prompt"])))
        for entry in entries
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Prompts in turn, each pass over them with seeds of its own."""

    prompts: list[Prompt]
    tokens: int
    temperatures: tuple[float, ...]
    passes: int = 2

    def repetitions(self) -> Iterator[list[Case]]:
        """A prompt at the main temperature; at the others too, every second time."""
        for number in range(self.passes * len(self.prompts)):
            prompt = self.prompts[number % len(self.prompts)]
            seed = FIRST_SEED + number
            temperatures = self.temperatures[: 1 if number % 2 else None]
            yield [
                Case(prompt=prompt, tokens=self.tokens, temperature=temperature, seed=seed)
                for temperature in temperatures
            ]

    def warm_up(self) -> Case:
        """Short, and not measured."""
        return Case(prompt=self.prompts[0], tokens=12, temperature=self.temperatures[0], seed=0)
