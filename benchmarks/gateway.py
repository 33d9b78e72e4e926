"""`python -m benchmarks.gateway`: what the HTTP door costs compared with the gRPC door.

Both doors of one running stack are measured in turn, so that a machine that slows down slows both
down. Plain decoding sends one token per message, which has the highest cost per token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from benchmarks.machine import describe_machine
from benchmarks.output import prepare, run_command, with_suffixes
from benchmarks.settings import MIN_TOKENS, at_least, default_output
from draftloop.client import AsyncClient
from draftloop.request import GenerationParameters, SamplingParameters
from draftloop.speculation import AUTOREGRESSIVE, Speculation
from orchestrator.launcher import Stack
from orchestrator.stack_config import StackConfig

PROMPT = "def main():\n    "
GRPC, HTTP = "gRPC", "HTTP"
CONCURRENCIES = (1, 8)
GOAL_MS = 1.0


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream as its client saw it, in seconds: time to first token, and per token after it."""

    first_s: float
    per_token_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Medians over all streams of one door.

    `per_token_ms` is the time between two tokens of one stream, during which the other streams get
    theirs too. `served_ms` is the time per token of all streams together. `cpu_ms` is the
    orchestrator's processor time per token.
    """

    door: str
    concurrency: int
    streams: int
    first_ms: float
    per_token_ms: float
    served_ms: float
    cpu_ms: float


Open = Callable[[int], Awaitable[Stream]]


@dataclass(frozen=True, slots=True)
class OrchestratorServer:
    """One stack with the addresses of both of its doors."""

    grpc: AsyncClient
    http_address: str
    tokens: int

    async def by_grpc(self, seed: int) -> Stream:
        """One stream over the gRPC API."""
        parameters = GenerationParameters(
            text=PROMPT,
            sampling=SamplingParameters(temperature=0.8),
            seed=seed,
            max_tokens=self.tokens,
            ignore_eos=True,
            speculation=Speculation(strategy=AUTOREGRESSIVE),
        )
        started, moments = time.perf_counter(), []
        async for piece in self.grpc.stream(parameters):
            if piece.token_ids:
                moments.append(time.perf_counter())
        return self._stream(started, moments)

    async def by_http(self, seed: int) -> Stream:
        """One stream of server-sent events on its own connection, each event parsed."""
        body = json.dumps(
            {
                "prompt": PROMPT, "temperature": 0.8, "seed": seed, "max_tokens": self.tokens,
                "ignore_eos": True, "stream": True, "speculative": {"strategy": AUTOREGRESSIVE},
                "logprobs": None,
            }
        ).encode()  # fmt: skip
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {self.http_address}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        host, _, port = self.http_address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        started, moments = time.perf_counter(), []
        writer.write(head.encode() + body)
        while (line := await reader.readline()) != b"data: [DONE]\n":
            if line.startswith(b"data: "):
                json.loads(line[6:])
                moments.append(time.perf_counter())
            elif not line:
                raise ConnectionError("the stream ended without [DONE]")
        writer.close()
        return self._stream(started, moments)

    def _stream(self, started: float, moments: Sequence[float]) -> Stream:
        duration = moments[-1] - moments[0]
        return Stream(moments[0] - started, duration / (self.tokens - 1))


async def measure(doors: OrchestratorServer, process: psutil.Process, repeats: int) -> list[Row]:
    """Both doors in turn at every concurrency, after a warm-up."""
    ways: dict[str, Open] = {GRPC: doors.by_grpc, HTTP: doors.by_http}
    rows: list[Row] = []
    for way in ways.values():
        await way(0)
    for concurrency in CONCURRENCIES:
        streams: dict[str, list[Stream]] = {door: [] for door in ways}
        cpu_s = dict.fromkeys(ways, 0.0)
        for repeat in range(repeats):
            order = list(ways) if repeat % 2 else list(ways)[::-1]
            for door in order:
                before = _cpu(process)
                seeds = range(repeat * concurrency, (repeat + 1) * concurrency)
                streams[door] += await asyncio.gather(*map(ways[door], seeds))
                cpu_s[door] += _cpu(process) - before
        rows += [_row(door, concurrency, streams[door], cpu_s[door], doors.tokens) for door in ways]
    return rows


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _row(door: str, concurrency: int, streams: Sequence[Stream], cpu_s: float, tokens: int) -> Row:
    per_token_ms = 1e3 * statistics.median(stream.per_token_s for stream in streams)
    return Row(
        door=door,
        concurrency=concurrency,
        streams=len(streams),
        first_ms=1e3 * statistics.median(stream.first_s for stream in streams),
        per_token_ms=per_token_ms,
        served_ms=per_token_ms / concurrency,
        cpu_ms=1e3 * cpu_s / (len(streams) * tokens),
    )


def overheads(rows: Sequence[Row]) -> dict[int, dict[str, float]]:
    """What HTTP takes beyond gRPC, in milliseconds, by concurrency."""
    by = {(row.door, row.concurrency): row for row in rows}
    names = ("first_ms", "per_token_ms", "served_ms", "cpu_ms")
    return {
        concurrency: {
            name: getattr(by[HTTP, concurrency], name) - getattr(by[GRPC, concurrency], name)
            for name in names
        }
        for concurrency in CONCURRENCIES
    }


def page(rows: Sequence[Row], machine: dict[str, Any]) -> str:
    """The tables as Markdown."""
    lines = [
        "# What the HTTP door costs\n",
        f"`python -m benchmarks.gateway`, {machine['cores']} cores, load average "
        f"{machine['load_average'][0]} at the end. Plain decoding, one token a message; medians "
        "over the streams. *Between* lies between two tokens of one stream; *served* is what one "
        "token of all streams together took; *cpu* is the orchestrator's processor time a token.\n",
        "| door | concurrency | streams | first token ms | between ms | served ms | cpu ms |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.door} | {row.concurrency} | {row.streams} | {row.first_ms:.2f} "
        f"| {row.per_token_ms:.3f} | {row.served_ms:.3f} | {row.cpu_ms:.3f} |"
        for row in rows
    ]
    lines += [
        "\nHTTP beyond gRPC:\n",
        "| concurrency | first token ms | between ms | served ms | cpu ms |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {concurrency} | {more['first_ms']:+.2f} | {more['per_token_ms']:+.3f} "
        f"| {more['served_ms']:+.3f} | {more['cpu_ms']:+.3f} |"
        for concurrency, more in overheads(rows).items()
    ]
    return "\n".join(lines) + "\n"


def _write(rows: Sequence[Row], out: Path) -> str:
    machine = describe_machine()
    results = {"machine": machine, "rows": [asdict(row) for row in rows],
            "overheads": overheads(rows), "goal_ms_per_token": GOAL_MS}  # fmt: skip
    as_json, as_page = with_suffixes(out, ".json", ".md")
    as_json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    text = page(rows, machine)
    as_page.write_text(text, encoding="utf-8")
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    """Starts a stack without a drafter, measures, writes and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=at_least(MIN_TOKENS), default=64, help="tokens a stream")
    parser.add_argument("--repeats", type=at_least(1), default=10, help="turns of each door")
    parser.add_argument("--out", type=Path, default=default_output("gateway"),
                        help="path without suffix")  # fmt: skip
    chosen = parser.parse_args(arguments)
    prepare(*with_suffixes(chosen.out, ".json", ".md"))
    config = StackConfig(port=0, http_port=0, verifier_port=0, draft=None, start_timeout_s=600)
    with Stack(config) as stack:
        process = stack.processes["orchestrator"].process
        assert process is not None and stack.http_address is not None

        async def run(http_address: str, pid: int) -> list[Row]:
            async with AsyncClient(stack.address) as client:
                doors = OrchestratorServer(client, http_address, chosen.tokens)
                return await measure(doors, psutil.Process(pid), chosen.repeats)

        rows = asyncio.run(run(stack.http_address, process.pid))
    Console().print(_write(rows, chosen.out), markup=False)


if __name__ == "__main__":
    run_command(main)
