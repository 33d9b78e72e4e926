"""`python -m benchmarks.prefixes`: what sharing common prefixes of prompts saves.

    python -m benchmarks.prefixes [--profile 300M] [--repeats 3]

Measures a chat, each turn of which has all earlier turns in its prompt, and concurrent requests
whose prompts have a common prefix. Each runs alternately as one tenant, whose requests share
prefixes, and as tenants that share nothing. Prints a table and writes OUT.json.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.machine import available_cores, describe_machine
from benchmarks.output import prepare, run_command, with_suffixes
from benchmarks.prompts import held_out_prompts
from benchmarks.services import stack_of
from benchmarks.settings import at_least, default_output
from benchmarks.systems import PROFILES
from draftloop.client import NO_RETRY, AsyncClient
from draftloop.request import GenerationParameters, SamplingParameters
from orchestrator.launcher import Stack

TURNS, TOGETHER = 4, 8
FIRST_PROMPT_TOKENS, TURN_TOKENS, ANSWER_TOKENS = (
    900,
    60,
    24,
)  # tokens: first prompt, each turn, each answer
TEMPERATURE = 0.8
Ids = tuple[int, ...]
Seen = dict[str, list[float]]


class Tenants:
    """Sends requests as one tenant, or each as a new tenant."""

    def __init__(self, client: AsyncClient, name: str, *, sharing: bool) -> None:
        self._client, self._name, self._sharing = client, name, sharing
        self._numbers = itertools.count()

    async def ask(self, prompt: Ids) -> tuple[float, Ids]:
        """Seconds to the first token, and all tokens of the answer."""
        tenant = self._name if self._sharing else f"{self._name} {next(self._numbers)}"
        parameters = GenerationParameters(
            token_ids=prompt, sampling=SamplingParameters(temperature=TEMPERATURE), seed=1,
            max_tokens=ANSWER_TOKENS, ignore_eos=True, tenant=tenant,
        )  # fmt: skip
        tokens: list[int] = []
        began, first = time.perf_counter(), 0.0
        async for piece in self._client.stream(parameters):
            first = first or time.perf_counter() - began
            tokens += piece.token_ids
        return first, tuple(tokens)


async def chat(tenants: Tenants, text: Ids) -> tuple[Seen, list[Ids]]:
    """Time to first token for every turn, and the answers."""
    prompt, seen, answers = text[:FIRST_PROMPT_TOKENS], {}, []
    for turn in range(TURNS):
        seconds, answer = await tenants.ask(prompt)
        seen[f"chat, turn {turn + 1}"] = [seconds]
        answers.append(answer)
        begin = FIRST_PROMPT_TOKENS + turn * TURN_TOKENS
        prompt = (*prompt, *answer, *text[begin : begin + TURN_TOKENS])
    return seen, answers


async def burst(tenants: Tenants, text: Ids) -> tuple[Seen, list[Ids]]:
    """Time to first token of concurrent requests, the time for all answers, and the answers."""
    begin, beginning = FIRST_PROMPT_TOKENS, text[:FIRST_PROMPT_TOKENS]
    prompts = [
        (*beginning, *text[begin + number : begin + TURN_TOKENS]) for number in range(TOGETHER)
    ]
    began = time.perf_counter()
    answered = await asyncio.gather(*map(tenants.ask, prompts))
    name = f"{TOGETHER} requests at a time"
    seen = {f"{name}, first token": [seconds for seconds, _ in answered]}
    seen[f"{name}, all answers"] = [time.perf_counter() - began]
    return seen, [tokens for _, tokens in answered]


async def measure(address: str, repeats: int) -> tuple[dict[bool, Seen], bool]:
    """Seconds by measurement, with and without sharing; and whether all answers were equal."""
    times: dict[bool, Seen] = {True: defaultdict(list), False: defaultdict(list)}
    equal = True
    async with AsyncClient(address, retry=NO_RETRY) as client:
        for repeat in range(repeats):
            for name, kind in (("chat", chat), ("burst", burst)):
                text = _text(2 * repeat + (kind is burst))
                all_answers: list[list[Ids]] = []
                for sharing in (False, True) if repeat % 2 else (True, False):
                    tenants = Tenants(client, f"{name} {repeat} {sharing}", sharing=sharing)
                    seen, answers = await kind(tenants, text)
                    all_answers.append(answers)
                    for measure_name, seconds in seen.items():
                        times[sharing][measure_name] += seconds
                equal = equal and all_answers[0] == all_answers[1]
    return times, equal


def _text(number: int) -> Ids:
    """Held-out text, long enough for a chat; seven consecutive numbers give different texts."""
    prompts = held_out_prompts(48)[number % 7 * 6 :]
    ids = itertools.chain.from_iterable(prompt.token_ids for prompt in prompts)
    return tuple(itertools.islice(ids, FIRST_PROMPT_TOKENS + TURNS * TURN_TOKENS))


def _medians(times: Seen) -> dict[str, float]:
    return {
        measure_name: round(statistics.median(seconds), 3)
        for measure_name, seconds in times.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", choices=PROFILES, default="300M")
    parser.add_argument("--repeats", type=at_least(1), default=3)
    parser.add_argument("--out", type=Path, default=default_output("prefixes"))
    options = parser.parse_args(arguments)
    (file,) = with_suffixes(options.out, ".json")
    prepare(file)
    config = stack_of(PROFILES[options.profile], available_cores(), prefix_caching=True)
    with Stack(config, on_ready=lambda process: print(f"{process.role} is ready")) as stack:
        times, equal = asyncio.run(measure(stack.address, options.repeats))
    shared, apart = _medians(times[True]), _medians(times[False])
    table = Table(title=f"seconds, profile {options.profile}, medians of {options.repeats}")
    for column in ("", "nothing shared", "beginnings shared", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    for measure_name, seconds in apart.items():
        ratio = f"{seconds / shared[measure_name]:.1f}x"
        table.add_row(measure_name, f"{seconds:.2f}", f"{shared[measure_name]:.2f}", ratio)
    Console().print(table, f"all answers equal: {'yes' if equal else 'NO'}")
    result = {
        "machine": describe_machine(),
        "profile": options.profile,
        "repeats": options.repeats,
        "equal": equal,
        "seconds": {"nothing shared": apart, "beginnings shared": shared},
    }
    file.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    run_command(main)
