"""Our services as a measured system: all roles as real processes, over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from benchmarks.outcome import Outcome, RoundSplit
from benchmarks.systems import METHODS, Profile
from benchmarks.workload import Case
from draftloop.client import NO_RETRY, AsyncClient
from draftloop.completion import DeploymentInfo, Piece, Summary
from draftloop.config import Quantization, bundled_model
from draftloop.environment import API_KEY
from draftloop.phrase import PhraseScope
from draftloop.request import GenerationParameters, SamplingParameters
from draftloop.rpc.health import CA, CERTIFICATE, KEY, SERVER_NAME
from draftloop.speculation import OUROBOROS, Speculation
from orchestrator.cli_common import make_tls
from orchestrator.launcher import Stack
from orchestrator.stack_config import StackConfig

NS_PER_MS = 1e6
Show = Callable[[Piece], None]


class Services:
    """A client of one running stack."""

    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self._client = client
        self._runner = runner  # calls pass through no thread, unlike the sync client's

    def info(self) -> DeploymentInfo:
        """Models, limits and measured costs of the deployment."""
        return self._runner.run(self._client.info())

    def run(self, method: str, case: Case, show: Show | None = None) -> Outcome:
        """Continues the prompt; `show` is called with every piece as it arrives."""
        return self._runner.run(self._generate(self._request_of(method, case), show))

    def run_together(self, method: str, cases: Sequence[Case], most: int) -> list[Outcome]:
        """Continues all prompts, at most `most` of them at a time."""

        async def run() -> list[Outcome]:
            places = asyncio.Semaphore(most)

            async def one(case: Case) -> Outcome:
                async with places:
                    return await self._generate(self._request_of(method, case), None)

            return await asyncio.gather(*map(one, cases))

        return self._runner.run(run())

    def warm(self, case: Case) -> None:
        """Continues the prompt to fill the pool that warm methods of its workload read."""
        speculation = Speculation(strategy=OUROBOROS)
        request = parameters(speculation, f"{case.workload}, warm", case)
        self._runner.run(self._generate(request, None))

    @staticmethod
    def _request_of(method: str, case: Case) -> GenerationParameters:
        chosen = METHODS[method]
        return parameters(chosen.speculation, f"{case.workload}, {chosen.pool}", case)

    async def _generate(self, parameters: GenerationParameters, show: Show | None) -> Outcome:
        token_ids: list[int] = []
        steps: list[tuple[float, int]] = []
        started = time.perf_counter()
        pieces = self._client.stream(parameters)
        async for piece in pieces:
            if piece.token_ids:
                steps.append((time.perf_counter() - started, len(piece.token_ids)))
                token_ids += piece.token_ids
            if show:
                show(piece)
        return _outcome(tuple(token_ids), steps, pieces.summary)


class RunningServer(Services):
    """A server that others use too: measurements neither help nor disturb them.

    Prompts are sent as text, for the server's own tokenizer, and belong to the API key's tenant, if
    there is one. Requests are private, so they find no computed prefixes and no phrases of others.
    """

    @staticmethod
    def _request_of(method: str, case: Case) -> GenerationParameters:
        speculation = METHODS[method].speculation
        scope = PhraseScope.PRIVATE if speculation.phrases.reads else speculation.phrases
        generation = parameters(dataclasses.replace(speculation, phrases=scope), "", case)
        return dataclasses.replace(generation, text=case.prompt.text, token_ids=None)


def stack_of(
    profile: Profile,
    threads: int,
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
    *,
    prefix_caching: bool = False,
    quantization: Quantization = "none",
    device: str = "cpu",
    draft_device: str | None = None,
) -> StackConfig:
    """Configuration of a profile's roles on free ports, the target with `threads` threads.

    Both models are on `device`, unless the draft model has a `draft_device`. `prefix_caching` is
    off by default, because strategies take turns with the same prompts, and all but the first would
    find them computed.
    """
    both = () if prefix_caching else ("--no-prefix-caching",)
    return StackConfig(
        port=0,
        http_port=None,
        drafter_port=0,
        verifier_port=0,
        dtype=dtype,
        quantization=quantization,
        device=device,
        draft_device=draft_device,
        draft=bundled_model(profile.draft),
        smaller_models=",".join(str(bundled_model(name)) for name in profile.smaller),
        drafter_flags=(
            *(("--inflate", profile.draft_inflate) if profile.draft_inflate else ()),
            *both,
        ),
        inflate=profile.inflate,
        verifier_flags=("--threads", str(threads), *both),
    )


@contextlib.contextmanager
def running(config: StackConfig, on_ready: Callable[[str], None]) -> Iterator[Services]:
    """Starts all roles, calls `on_ready` with each one that is warm, and stops them at the end."""
    stack = Stack(config, on_ready=lambda process: on_ready(process.role))
    with stack:
        client = AsyncClient(stack.address, retry=NO_RETRY)
        with _loop_of(client) as runner:
            yield Services(client, runner)


@contextlib.contextmanager
def connected(address: str) -> Iterator[RunningServer]:
    """A client of a running server; key and TLS files come from `draftloop generate`'s variables.

    Raises StartupFailure if there is a client certificate but no CA.
    """
    files = (os.environ.get(name) for name in (CA, CERTIFICATE, KEY))
    ca, certificate, key = (Path(file) if file else None for file in files)
    tls = make_tls(ca, certificate, key, os.environ.get(SERVER_NAME, ""))
    client = AsyncClient(address, api_key=os.environ.get(API_KEY), tls=tls, retry=NO_RETRY)
    with _loop_of(client) as runner:
        yield RunningServer(client, runner)


@contextlib.contextmanager
def _loop_of(client: AsyncClient) -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        try:
            yield runner
        finally:
            runner.run(client.close())


def parameters(speculation: Speculation, tenant: str, case: Case) -> GenerationParameters:
    """The request for a case."""
    return GenerationParameters(
        token_ids=case.prompt.token_ids,
        sampling=SamplingParameters(temperature=case.temperature, grammar=case.prompt.grammar),
        seed=case.seed,
        max_tokens=case.tokens,
        ignore_eos=case.prompt.grammar is None,
        speculation=speculation,
        tenant=tenant,
    )


def _outcome(
    token_ids: tuple[int, ...], steps: list[tuple[float, int]], summary: Summary
) -> Outcome:
    seen, figures = Outcome.from_steps(token_ids, steps), summary.figures
    return Outcome(
        token_ids=token_ids,
        first_tokens=seen.first_tokens,
        first_token_s=seen.first_token_s,
        decode_s=seen.decode_s,
        rounds=figures.rounds,
        drafted=figures.draft_tokens,
        accepted=figures.accepted_tokens,
        draft_forwards=figures.draft_forwards,
        fallback_rounds=figures.fallback_rounds,
        sources=figures.sources,
        ends=dict(figures.ends),
        split=_split(summary),
    )


def _split(summary: Summary) -> RoundSplit:
    timings = summary.timings
    per_round = NS_PER_MS * max(1, summary.figures.rounds)
    forwards = timings.draft_forward_ns + timings.verify_forward_ns
    return RoundSplit(
        draft_forward=timings.draft_forward_ns / per_round,
        verify_forward=timings.verify_forward_ns / per_round,
        wire=timings.wire_ns / per_round,
        rest=(timings.decode_ns - forwards - timings.wire_ns) / per_round,
        overhead=timings.overhead_per_round_ns / NS_PER_MS,
    )
