"""Our services as a system under measurement: all roles as real processes, over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

from benchmarks.outcome import Outcome, RoundSplit
from benchmarks.systems import METHODS
from benchmarks.workload import Case
from draftloop.request import GenerationParameters, SamplingParameters
from draftloop.rpc.generation_client import DeploymentInfo, GenerationClient, Piece, Summary
from draftloop.speculation import OUROBOROS, Speculation
from orchestrator.launcher import Stack, StackConfig

NS_PER_MS = 1e6
Show = Callable[[Piece], None]


class Services:
    """A client of one running stack."""

    def __init__(self, address: str, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._client = runner.run(_connect(address))

    def info(self) -> DeploymentInfo:
        """Models, limits and measured costs."""
        return self._runner.run(self._client.info())

    def run(self, method: str, case: Case, show: Show | None = None) -> Outcome:
        """Continues the prompt; `show` gets every piece as it comes."""
        chosen = METHODS[method]
        tenant = f"{case.workload}, {chosen.pool}"
        request = parameters(chosen.speculation, tenant, case)
        return self._runner.run(self._generate(request, show))

    def warm(self, case: Case) -> None:
        """Continues the prompt for its phrases' sake, which warm methods of its workload read."""
        speculation = Speculation(strategy=OUROBOROS)
        request = parameters(speculation, f"{case.workload}, warm", case)
        self._runner.run(self._generate(request, None))

    def close(self) -> None:
        """Leaves the stack as it is."""
        self._runner.run(self._client.__aexit__(None, None, None))

    async def _generate(self, said: GenerationParameters, show: Show | None) -> Outcome:
        token_ids: list[int] = []
        steps: list[tuple[float, int]] = []
        summary: Summary | None = None
        asked = time.perf_counter()
        async with contextlib.aclosing(self._client.generate(said)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                if piece.token_ids:
                    steps.append((time.perf_counter() - asked, len(piece.token_ids)))
                    token_ids += piece.token_ids
                summary = piece.summary or summary
                if show:
                    show(piece)
        assert summary is not None, "the last piece always has it"
        return _outcome(tuple(token_ids), steps, summary)


@contextlib.contextmanager
def running(config: StackConfig, on_ready: Callable[[str], None]) -> Iterator[Services]:
    """Starts all roles, names each to `on_ready` once it is warm, and stops them in the end."""
    stack = Stack(config, on_ready=lambda process: on_ready(process.role))
    with stack, asyncio.Runner() as runner:
        services = Services(stack.address, runner)
        try:
            yield services
        finally:
            services.close()


def parameters(speculation: Speculation, tenant: str, case: Case) -> GenerationParameters:
    """The case as a request."""
    return GenerationParameters(
        token_ids=case.prompt.token_ids,
        sampling=SamplingParameters(temperature=case.temperature),
        seed=case.seed,
        max_tokens=case.tokens,
        ignore_eos=True,
        speculation=speculation,
        tenant=tenant,
    )


async def _connect(address: str) -> GenerationClient:
    return GenerationClient(address)


def _outcome(
    token_ids: tuple[int, ...], steps: list[tuple[float, int]], summary: Summary
) -> Outcome:
    seen = Outcome.of_steps(token_ids, steps)
    return Outcome(
        token_ids=token_ids,
        first_tokens=seen.first_tokens,
        first_token_s=seen.first_token_s,
        decode_s=seen.decode_s,
        rounds=summary.rounds,
        drafted=summary.draft_tokens,
        accepted=summary.accepted_tokens,
        draft_forwards=summary.draft_forwards,
        fallback_rounds=summary.fallback_rounds,
        sources=summary.sources,
        ends=summary.ends,
        split=_split(summary),
    )


def _split(summary: Summary) -> RoundSplit:
    per_round = NS_PER_MS * max(1, summary.rounds)
    forwards = summary.draft_forward_ns + summary.verify_forward_ns
    return RoundSplit(
        draft_forward=summary.draft_forward_ns / per_round,
        verify_forward=summary.verify_forward_ns / per_round,
        wire=summary.wire_ns / per_round,
        rest=(summary.decode_ns - forwards - summary.wire_ns) / per_round,
        overhead=summary.overhead_per_round_ns / NS_PER_MS,
    )
