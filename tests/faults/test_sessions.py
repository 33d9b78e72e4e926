"""Verifier sessions of a request when services hang, vanish, refuse or say nothing."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from structlog.testing import capture_logs

from draftloop.errors import (
    DeadlineExceeded,
    InvalidInput,
    Mismatch,
    SessionLost,
    Unavailable,
)
from draftloop.load import ServiceLoad
from draftloop.model_info import CostPoint, ModelInfo
from draftloop.rpc.sessions import require_model
from draftloop.tree import EMPTY_TREE, ROOT, DraftTree, TokenSource
from orchestrator.replicas import Replicas
from orchestrator.verifier_session import MAX_FAILURES, VerifierSession
from protos import verifier_pb2_grpc
from tests.faults import fakes
from tests.faults.open_sessions import (
    AT_ONCE_S,
    DRAFT_TIMEOUT_S,
    PROMPT,
    TARGET,
    add_verifier,
    replicas,
    session_terms,
)
from tests.support.model_info import model_info
from tests.support.waiting import eventually


class OtherModel(verifier_pb2_grpc.VerifierServicer):
    """A verifier that was restarted with another model since it was last asked."""

    def __init__(self, served: ModelInfo) -> None:
        self._served = served

    async def Verify(self, messages: Any, context: Any) -> AsyncIterator[Any]:
        require_model((await anext(messages)).open, self._served)
        return
        yield


class Forgetful(fakes.ScriptedVerifier):
    """Loses every session at its second message."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    async def Verify(self, messages: Any, context: Any) -> AsyncIterator[Any]:
        async def first() -> AsyncIterator[Any]:
            message = await anext(messages)
            self.opened.append(message.open.session_id)
            yield message

        async for answer in super().Verify(first(), context):
            yield answer
        await anext(messages)
        raise SessionLost("forgotten")


class ShortContext(fakes.ScriptedVerifier):
    """Refuses to verify at a full context, as a real verifier does."""

    def __init__(self, context_length: int) -> None:
        super().__init__()
        self.context_length = context_length

    async def Verify(self, messages: Any, context: Any) -> AsyncIterator[Any]:
        async def fitting() -> AsyncIterator[Any]:
            async for message in messages:
                length, most = message.verify.committed_length, self.context_length
                if length >= most:
                    rule = f"must be below the context length, {most}"
                    raise InvalidInput("committed_length", rule, length)
                yield message

        async for answer in super().Verify(fitting(), context):
            yield answer


class Incapable(fakes.ScriptedVerifier):
    """Fails with an unexpected error on texts beyond a length."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.failures = 0

    async def Verify(self, messages: Any, context: Any) -> AsyncIterator[Any]:
        async for answer in super().Verify(messages, context):
            if answer.committed_length > self.most:
                self.failures += 1
                raise RuntimeError("a bug that only this text meets")
            yield answer


async def test_text_that_no_verifier_can_run_is_not_retried_endlessly() -> None:
    """Each attempt would be a forward pass that fails for all sessions in it."""
    first_verifier, second_verifier = Incapable(len(PROMPT)), Incapable(len(PROMPT))
    async with (
        fakes.listening(add_verifier, first_verifier) as first,
        fakes.listening(add_verifier, second_verifier) as second,
        replicas(first, second) as known,
    ):
        session = VerifierSession(known, session_terms(), reopen_for_s=60)
        await session.open(PROMPT)
        with pytest.raises(Unavailable, match="internal error"):
            await session.verify((*PROMPT, 1), EMPTY_TREE)
        assert first_verifier.failures == second_verifier.failures == MAX_FAILURES
        first_verifier.most = second_verifier.most = 2 * len(PROMPT)
        session = VerifierSession(known, session_terms(), reopen_for_s=60)
        await session.open(PROMPT)
        assert (await session.verify((*PROMPT, 1), EMPTY_TREE)).verdict.emitted_token_ids
        await session.close()


async def test_session_that_shared_a_failed_forward_goes_on() -> None:
    """The forward pass fails for all sessions in it, at the same time, on the only replica."""
    fake = Incapable(len(PROMPT))
    async with fakes.listening(add_verifier, fake) as address, replicas(address) as known:
        sessions = [VerifierSession(known, session_terms(), reopen_for_s=60) for _ in range(3)]
        for session in sessions:
            await session.open(PROMPT)
        rounds = [
            asyncio.create_task(session.verify((*PROMPT, 1), EMPTY_TREE)) for session in sessions
        ]
        await eventually(lambda: fake.failures >= 2 * len(sessions))
        fake.most = 2 * len(PROMPT)  # the text at fault has gone
        for task, session in zip(rounds, sessions, strict=True):
            assert (await task).verdict.emitted_token_ids
            await session.close()


async def test_reopened_session_has_a_new_id() -> None:
    forgetful = Forgetful()
    async with (
        fakes.listening(add_verifier, forgetful) as address,
        replicas(address) as known,
    ):
        for _ in range(2):
            session = VerifierSession(known, session_terms(), reopen_for_s=1)
            await session.open(PROMPT)
            await session.verify((*PROMPT, 1), EMPTY_TREE)
            await session.close()
    assert len(set(forgetful.opened)) == len(forgetful.opened) == 4
    assert all(re.fullmatch(r"one\.\d+", name) for name in forgetful.opened)


@pytest.mark.parametrize(
    "changed", [{"model_fingerprint": "cc"}, {"dtype": "bfloat16"}, {"quantization": "int8"}]
)
async def test_replica_with_another_model_is_skipped(changed: dict[str, str]) -> None:
    """Another format counts as another model: such a replica used to resume the text."""
    async with (
        fakes.listening(add_verifier, OtherModel(model_info(**changed))) as other_model,
        fakes.listening(add_verifier, fakes.ScriptedVerifier()) as same_model,
    ):
        async with replicas(other_model, same_model) as known:
            for _ in range(6):
                session = VerifierSession(known, session_terms(), reopen_for_s=1)
                assert (await session.open(PROMPT)).verdict.emitted_token_ids
                await session.close()
        async with replicas(other_model) as known:
            with pytest.raises(Mismatch):
                await VerifierSession(known, session_terms(), reopen_for_s=1).open(PROMPT)


async def test_replicas_that_joined_are_tried_and_those_that_left_are_not() -> None:
    """The replicas known when the first was asked may have changed by the time that it fails."""
    fake = fakes.ScriptedVerifier()
    async with (
        AsyncExitStack() as stack,
        fakes.listening(add_verifier, fakes.ScriptedVerifier()) as leaving,
        fakes.listening(add_verifier, fake) as joining,
    ):
        hangs = fakes.ScriptedVerifier(hangs_at=0)
        dying = await stack.enter_async_context(fakes.listening(add_verifier, hangs))
        all_replicas = await stack.enter_async_context(replicas(dying, leaving, joining))
        first, second, third = all_replicas
        known = Replicas([first])
        session = VerifierSession(known, session_terms(), reopen_for_s=1)
        opening = asyncio.create_task(session.open(PROMPT))
        await asyncio.sleep(AT_ONCE_S)
        known.join(second)
        await second.channel.close()  # as discovery does with an address that is no longer listed
        known.join(third)
        hangs.end()
        assert (await opening).verdict.emitted_token_ids and fake.open_sessions == 1
        await session.close()


async def test_replica_with_too_short_a_context_is_skipped() -> None:
    fake = fakes.ScriptedVerifier()
    async with (
        fakes.listening(add_verifier, fakes.ScriptedVerifier()) as small,
        fakes.listening(add_verifier, fake) as large,
        replicas(small, large) as known,
    ):
        for replica, length in zip(known, (len(PROMPT), 64), strict=True):
            replica.model = model_info(context_length=length)
        for _ in range(4):
            session = VerifierSession(known, session_terms(), reopen_for_s=1)
            await session.open(PROMPT)
            await session.close()
        assert len(fake.times_given) == 4


async def test_text_that_outgrows_its_replica_continues_on_another() -> None:
    """A full context used to be refused as the client's mistake, despite the promised room."""
    full, short = (*PROMPT, len(PROMPT)), ShortContext(len(PROMPT) + 1)
    async with (
        fakes.listening(add_verifier, short) as first,
        fakes.listening(add_verifier, fakes.ScriptedVerifier()) as second,
        replicas(first, second) as both,
    ):
        small, large = both
        small.model, large.model = model_info(context_length=short.context_length), TARGET
        known = Replicas([small])
        session = VerifierSession(known, session_terms(), reopen_for_s=AT_ONCE_S)
        assert (await session.open(PROMPT)).verdict.emitted_token_ids == full[-1:]
        assert session.context_length == len(full)
        with pytest.raises(Unavailable):
            await session.verify(full, EMPTY_TREE)
        session = VerifierSession(known, session_terms(), reopen_for_s=2)
        await session.open(PROMPT)
        known.join(large)
        answer = await session.verify(full, EMPTY_TREE)
        assert answer.verdict.emitted_token_ids == (len(full),) and session.reopened == 1
        assert session.context_length == TARGET.context_length and not small.failures
        await session.close()


@pytest.mark.parametrize(
    ("fake", "token"),
    [(fakes.ScriptedVerifier(vocabulary_size=100), 100), (fakes.ScriptedVerifier(accepted=[7]), 1)],
    ids=["draft", "verdict"],
)
async def test_invalid_draft_or_verdict_costs_a_session_but_no_request(
    fake: fakes.ScriptedVerifier, token: int
) -> None:
    """An invalid draft, whatever its source, or verdict is not the client's mistake."""
    async with fakes.listening(add_verifier, fake) as address, replicas(address) as known:
        for replica in known:
            replica.model = TARGET
        session = VerifierSession(known, session_terms(), reopen_for_s=2)
        first = await session.open(PROMPT)
        committed = [*PROMPT, *first.verdict.emitted_token_ids]
        draft = DraftTree((token,), (ROOT,), (0.5,), (TokenSource.PHRASE,))
        answer = await session.verify(committed, draft)
        assert answer.verdict.emitted_token_ids == (len(committed),) and session.reopened == 1
        await session.close()


async def test_deadline_holds_without_any_replica() -> None:
    session = VerifierSession(Replicas(), session_terms(0.3), reopen_for_s=30)
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        await session.verify(PROMPT, EMPTY_TREE)
    assert time.monotonic() - started < 15.0


async def test_costs_are_the_latest_of_the_sessions_replica() -> None:
    async with (
        fakes.listening(add_verifier, fakes.ScriptedVerifier()) as address,
        replicas(address) as known,
    ):
        session = VerifierSession(known, session_terms(), reopen_for_s=1)
        curves = [session.cost_curve]
        await session.open(PROMPT)
        [replica] = known
        for nanoseconds in (1000, 2000):
            replica.model = model_info(cost_curve=(CostPoint(1, nanoseconds),))
            curves.append(session.cost_curve)
        await session.close()
    assert curves == [(), (CostPoint(1, 1000),), (CostPoint(1, 2000),)]


async def test_deadline_is_passed_on() -> None:
    fake = fakes.ScriptedVerifier()
    async with fakes.listening(add_verifier, fake) as address, replicas(address) as known:
        for seconds in (None, 30.0):
            session = VerifierSession(known, session_terms(seconds), reopen_for_s=1)
            await session.open(PROMPT)
            await session.close()
    without, with_deadline = fake.times_given
    assert without is None
    assert with_deadline is not None and 25 < with_deadline < 31  # gRPC rounds it up a little


async def test_deadline_ends_a_round_and_frees_the_session() -> None:
    """No other replica is asked, and none is counted as failing."""
    fake = fakes.ScriptedVerifier(hangs_at=len(PROMPT) + 1)
    async with fakes.listening(add_verifier, fake) as address, replicas(address) as known:
        session = VerifierSession(known, session_terms(0.5), reopen_for_s=10)
        first = await session.open(PROMPT)
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            await session.verify([*PROMPT, *first.verdict.emitted_token_ids], EMPTY_TREE)
        assert time.monotonic() - started < 5.0
        await session.close()
        await eventually(lambda: fake.open_sessions == 0)
        assert len(fake.times_given) == 1
        (replica,) = known.by_preference()
        assert replica.failures == 0 and replica.sessions == 0


async def test_busy_verifier_is_waited_for_and_a_stuck_one_is_not() -> None:
    """A busy verifier reports new forward passes, such as for other prompts ahead in its queue."""
    fake = fakes.ScriptedVerifier(hangs_at=0)
    async with fakes.listening(add_verifier, fake) as address, replicas(address) as known:
        (replica,) = known
        session = VerifierSession(
            known, session_terms(answer_timeout_s=DRAFT_TIMEOUT_S), reopen_for_s=1
        )
        opening = asyncio.create_task(session.open(PROMPT))
        for forwards in range(1, 13):
            replica.report(ServiceLoad(forwards=forwards))
            await asyncio.sleep(DRAFT_TIMEOUT_S / 4)
        assert not opening.done() and fake.open_sessions == 1
        started = time.monotonic()
        replica.report(ServiceLoad(forwards=12))  # alive, but without progress
        with pytest.raises(Unavailable, match="no answer came in time"):
            await opening
        assert time.monotonic() - started < DRAFT_TIMEOUT_S + AT_ONCE_S
        assert replica.failures == 1


async def test_no_session_is_opened_after_the_deadline() -> None:
    fake = fakes.ScriptedVerifier()
    async with fakes.listening(add_verifier, fake) as address, replicas(address) as known:
        session = VerifierSession(known, session_terms(-1.0), reopen_for_s=10)
        with pytest.raises(DeadlineExceeded):
            await session.open(PROMPT)
        assert not fake.times_given


async def test_client_errors_do_not_reveal_verifier_addresses() -> None:
    """gRPC's core names addresses in the error of a broken connection."""
    async with AsyncExitStack() as running:
        async with fakes.listening(add_verifier, fakes.ScriptedVerifier()) as address:
            known = await running.enter_async_context(replicas(address))
        session = VerifierSession(known, session_terms(), reopen_for_s=1)
        with capture_logs() as lines, pytest.raises(Unavailable) as caught:
            await session.open(PROMPT)
        assert str(caught.value) == "verifier: none can be reached"
        (line,) = lines
        assert line["event"] == "verifier not reached" and line["address"] == address
