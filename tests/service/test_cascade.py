"""The cascade over gRPC: one and two models in one drafter, refused parameters, freed slots."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from drafter_service.config import DrafterSettings
from draftloop.errors import StartupFailure
from draftloop.max_gram import MaxGram
from draftloop.runtime.service import ModelHost
from protos.drafter_pb2_grpc import DrafterStub
from protos.speculation_pb2 import CascadeParameters, CascadeRow
from protos.verifier_pb2_grpc import VerifierStub
from tests.service.conftest import MODEL, SMALL, Start
from tests.service.sessions import (
    PROMPT,
    BadRequest,
    open_drafter,
    open_verifier,
    propose,
    sampling,
    send_and_read,
    verify,
    wait_until_slots_free,
)
from tests.support.rich_errors import detail
from tests.support.toy_model import save_model
from tests.support.waiting import eventually

LENGTH = len(PROMPT)
TWICE: dict[str, Any] = {"smaller_models": str(MODEL)}


def cascade_of(*rows: tuple[int, ...], leniency: float = 1.0) -> CascadeParameters:
    return CascadeParameters(matrix=[CascadeRow(tokens=row) for row in rows], leniency=leniency)


async def wait_until_all_slots_free(host: ModelHost) -> None:
    """Returns once the slots of all models are free; they are freed one after the other."""
    await wait_until_slots_free(host)
    slots, caches = host.model.options.max_sessions, [m.cache for m in host.smaller_models]
    await eventually(lambda: all(cache.free_slots == slots for cache in caches))


@pytest.mark.parametrize("settings", [{}, TWICE], ids=["one model", "two models"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
async def test_drafts_of_models_equal_to_the_target_are_all_accepted(
    serve_drafter: Start, serve_verifier: Start, settings: dict[str, Any], temperature: float
) -> None:
    """Without a copied tail all tokens come from models equal to the target: all are accepted.

    Guards the keys and values kept in both caches across reviews and rounds.
    """
    rows = [(6, 0), (0, 4)] if not settings else [(4, 3, 0), (0, 2, 3), (0, 0, 3)]
    options: dict[str, Any] = {"sampling": sampling(temperature=temperature)}
    equal_drafter = serve_drafter(**settings, draft_temperature=1)  # the target's own temperature
    async with equal_drafter as (drafter_channel, host), serve_verifier() as (verifier_channel, _):
        drafter, verifier = (
            DrafterStub(drafter_channel).Draft(),
            VerifierStub(verifier_channel).Verify(),
        )
        await send_and_read(
            drafter, open_drafter(strategy="cascade", cascade=cascade_of(*rows), **options)
        )
        committed = list(PROMPT)
        new = list(
            (await send_and_read(verifier, open_verifier(**options))).verdict.emitted_token_ids
        )
        for round_number in range(6):
            committed += new
            nodes = 1 + 2 * round_number % 7
            answer = await send_and_read(drafter, propose(len(committed), new, nodes))
            draft = answer.draft
            assert 1 <= len(draft.token_ids) <= nodes
            assert answer.proposed_nodes >= len(draft.token_ids) and answer.end
            verdict = await send_and_read(
                verifier, verify(len(committed), draft.token_ids, draft.parents)
            )
            assert len(verdict.verdict.accepted_nodes) == len(draft.token_ids)
            new = list(verdict.verdict.emitted_token_ids)
        drafter.cancel()
        verifier.cancel()
        await wait_until_all_slots_free(host)


async def test_smaller_model_slots_are_taken_only_by_strategies_that_use_it(
    serve_drafter: Start,
) -> None:
    async with serve_drafter(**TWICE) as (channel, host):
        smaller = host.smaller_models[0].cache
        for strategy, free in (("speculative", 4), ("cascade", 3), ("fused", 3)):
            call: Any = DrafterStub(channel).Draft()
            await send_and_read(call, open_drafter(strategy=strategy))
            await send_and_read(call, propose(LENGTH + 1, [5]))
            assert smaller.free_slots == free
            call.cancel()
            await wait_until_all_slots_free(host)


async def test_max_gram_reads_the_prompt_in_pieces_off_the_engine_thread(
    serve_drafter: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, str]] = []

    class Noted(MaxGram):
        def extend(self, token_ids: Sequence[int]) -> None:
            read.append((len(token_ids), threading.current_thread().name))
            super().extend(token_ids)

    monkeypatch.setattr("drafter_service.strategies.cascade.MaxGram", Noted)
    monkeypatch.setattr("drafter_service.strategies.cascade.PIECE_TOKENS", 16)
    async with serve_drafter() as (channel, host):
        call: Any = DrafterStub(channel).Draft()
        await send_and_read(call, open_drafter(strategy="cascade"))
        thread = threading.current_thread().name
        assert [piece for piece in read if piece[0]] == [(16, thread), (16, thread), (8, thread)]
        call.cancel()
        await wait_until_all_slots_free(host)


async def test_slots_are_freed_however_a_session_ends(serve_drafter: Start) -> None:
    """Four times as many sessions as slots: closed, cancelled, refused, cancelled when drafting."""

    async def run_session(channel: grpc.aio.Channel, number: int) -> None:
        call: Any = DrafterStub(channel).Draft()
        await call.write(open_drafter(strategy="cascade"))
        if number % 4 == 0:
            call.cancel()
            return
        await call.read()
        await send_and_read(call, propose(LENGTH + 1, [5], 8))
        if number % 4 == 1:
            with pytest.raises(grpc.aio.AioRpcError):
                await send_and_read(call, propose(LENGTH + 9, [5]))
        elif number % 4 == 2:
            await call.done_writing()
            await call.read()
        else:
            await call.write(propose(LENGTH + 2, [6], 16))
            call.cancel()

    async with serve_drafter(**TWICE, max_sessions=2, max_waiting=16) as (channel, host):
        await asyncio.wait_for(asyncio.gather(*(run_session(channel, n) for n in range(8))), 60)
        await wait_until_all_slots_free(host)


@pytest.mark.parametrize(
    ("parameters", "field", "rule"),
    [
        (cascade_of((5, 10), (0, 10)), "cascade.matrix", "must have 3 rows of 3 entries"),
        (
            cascade_of((5, 1, 1), (1, 1, 1), (0, 0, 1)),
            "cascade.matrix[1]",
            "must begin with 1 zeros",
        ),
        (CascadeParameters(leniency=0.5), "cascade.leniency", "must be from 1 to 64; got 0.5"),
    ],
)
async def test_invalid_cascade_parameters_are_refused_with_field_and_rule(
    serve_drafter: Start, parameters: CascadeParameters, field: str, rule: str
) -> None:
    async with serve_drafter(**TWICE) as (channel, host):
        call = DrafterStub(channel).Draft()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send_and_read(call, open_drafter(strategy="cascade", cascade=parameters))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        violation = detail(refused.value, BadRequest).field_violations[0]
        assert violation.field == field and rule in violation.description
        assert "got" in violation.description
        await wait_until_all_slots_free(host)


async def test_cascade_stops_drafting_when_it_does_not_pay(serve_drafter: Start) -> None:
    async with serve_drafter(**TWICE) as (channel, _):
        call: Any = DrafterStub(channel).Draft()
        await send_and_read(call, open_drafter(strategy="cascade"))
        expensive: dict[str, Any] = {"tokens_per_second": 1e9, "least_path_probability": 1.0}
        answer = await send_and_read(call, propose(LENGTH + 1, [5], 8, **expensive))
        assert answer.timings.forwards == 1
        call.cancel()


async def test_draft_models_with_other_vocabularies_are_refused_at_start(tmp_path: Path) -> None:
    other_model = save_model(tmp_path)
    settings = DrafterSettings(**{**SMALL, "smaller_models": f"{MODEL},{other_model}"})
    host = ModelHost(settings, smaller_models=settings.smaller_model_folders)
    try:
        with pytest.raises(StartupFailure) as refused:
            await host.start()
    finally:
        await host.stop()
    assert "smaller_models" in str(refused.value)
    assert str(MODEL) in str(refused.value) and str(other_model) in str(refused.value)
