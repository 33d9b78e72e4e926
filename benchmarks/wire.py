"""`python -m benchmarks.wire`: a bare gRPC echo, hot and after pauses like those of a forward.

It shows the lowest possible cost of a round's wire: no conversion, no work, two processes on this
machine. After a forward pass, the processor's caches hold weights instead of code, and idle threads
sleep.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import uvloop
from rich.console import Console
from rich.table import Table

METHOD = "Echo"
MESSAGE = bytes(200)
WARM_UP, REPEATS = 20, 300
WEIGHTS_MIB = 64  # far more than fits into the caches


async def _echo(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    weights = np.ones(WEIGHTS_MIB << 17)
    async for message in messages:
        if message[:1] == b"f":  # a forward pass reads all weights once
            weights.sum()
        yield message


async def _serve() -> None:
    handler = grpc.stream_stream_rpc_method_handler(_echo)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bench", {METHOD: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


async def _measure(port: int, pause_s: float, forward: bool) -> tuple[float, float]:
    """Median and 95th percentile in milliseconds, without a forward's own time."""
    times: list[float] = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream(f"/bench/{METHOD}")()
        for number in range(WARM_UP + REPEATS):
            if forward:
                await call.write(b"f" + MESSAGE)
                await call.read()
            await asyncio.sleep(pause_s)
            began = time.perf_counter()
            await call.write(MESSAGE)
            await call.read()
            if number >= WARM_UP:
                times.append(1e3 * (time.perf_counter() - began))
        call.cancel()
    times.sort()
    return statistics.median(times), times[int(0.95 * len(times))]


def main() -> None:
    """Prints the table."""
    if sys.argv[1:] == ["serve"]:
        uvloop.run(_serve())
        return
    command = [sys.executable, "-m", "benchmarks.wire", "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        table = Table(title="a gRPC message and its echo, milliseconds")
        for column in ("before it", "median", "95 %"):
            table.add_column(column, justify="left" if column == "before it" else "right")
        try:
            for name, pause_s, forward in (
                ("nothing", 0.0, False),
                ("12 ms of rest", 0.012, False),
                (f"{WEIGHTS_MIB} MiB read by the server", 0.0, True),
            ):
                median, tail = uvloop.run(_measure(port, pause_s, forward))
                table.add_row(name, f"{median:.2f}", f"{tail:.2f}")
        finally:
            server.kill()
    Console().print(table)


if __name__ == "__main__":
    main()
