"""One request's session on a verifier. It survives lost replicas by reopening on another one."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

from draftloop import logs
from draftloop.errors import (
    DeadlineExceeded,
    DraftloopError,
    InvalidInput,
    Overloaded,
    Unavailable,
)
from draftloop.model_info import CostPoint, ModelInfo
from draftloop.tree import DraftTree, Verification
from orchestrator.clients import VerifierStream
from orchestrator.metrics import REOPENED
from orchestrator.replicas import Replica, Replicas
from orchestrator.session import Session
from orchestrator.stream import Disconnected, ServiceFailed
from orchestrator.terms import SessionTerms

# Pauses between attempts; each is twice as long as the one before.
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 0.5
# Failures of one reachable replica at the same text, after which it is no longer asked: it would
# fail again. More than one is allowed, since a failing forward fails for all sessions that share
# it, whichever of them was the cause.
MAX_FAILURES = 4
# How long a request that has begun tries replicas that are full.
MAX_FULL_S = 60.0

log = logs.get(__name__)

NOT_REACHED = "verifier: none can be reached"
OWN_FIELDS = ("draft.", "committed_length")  # fields that we set, not the client


class VerifierSession(Session[VerifierStream]):
    """A session that is reopened on the best replica whenever it is lost.

    Methods raise DeadlineExceeded once the request's deadline has passed.
    """

    def __init__(self, replicas: Replicas, terms: SessionTerms, *, reopen_for_s: float) -> None:
        super().__init__(replicas, terms)
        self._reopen_for_s = reopen_for_s
        self._failures: Counter[Replica] = Counter()  # at the current text
        # Whether a replica has accepted the request: an InvalidInput from then on is not the
        # client's fault.
        self._was_accepted = False
        self.reopened = 0

    @property
    def max_draft_nodes(self) -> int:
        """Maximum nodes per draft of the current replica."""
        return self._model.max_draft_nodes if self._model is not None else sys.maxsize

    @property
    def context_length(self) -> int:
        """Context length of the current replica; a longer text needs another one."""
        return self._model.context_length if self._model is not None else sys.maxsize

    @property
    def cost_curve(self) -> tuple[CostPoint, ...]:
        """The current replica's latest cost curve."""
        return self._model.cost_curve if self._model is not None else ()

    @property
    def _model(self) -> ModelInfo | None:
        return self._replica.model if self._replica is not None else None

    async def open(self, committed: Sequence[int]) -> Verification:
        """Opens on the best replica; the answer holds the next token.

        Raises without retrying if no replica takes the session: Overloaded if one of them is full,
        otherwise the last replica's error, usually Unavailable.
        """
        problem: DraftloopError = Unavailable(NOT_REACHED)
        tried: list[Replica] = []
        # Chosen anew after every failure, which may have taken a while: replicas come and go.
        while (replica := self._next_replica(committed, tried)) is not None:
            tried.append(replica)
            try:
                stream = VerifierStream(replica, self._terms)
                self._attach(replica, stream)
                answer = await stream.open(committed)
            except DeadlineExceeded:
                raise
            except DraftloopError as error:
                if isinstance(error, InvalidInput) and not self._was_accepted:
                    raise  # every other replica would answer the same
                problem = _error_to_report(problem, _without_address(error, replica))
                self._handle_failure(error)
                continue
            self._was_accepted = True
            self._record_success()
            self._record_prefix(committed)
            return answer
        raise problem

    def _next_replica(self, committed: Sequence[int], tried: Sequence[Replica]) -> Replica | None:
        """The best replica not tried yet that has room for the text and has not failed too often.

        None if there is none.
        """
        for replica in self._by_preference(committed):
            has_room = replica.model is None or len(committed) < replica.model.context_length
            may_succeed = self._failures[replica] < MAX_FAILURES
            if has_room and may_succeed and replica not in tried:
                return replica
        return None

    async def verify(self, committed: Sequence[int], draft: DraftTree) -> Verification:
        """The verdict on `draft`; after a loss, that on an empty draft, from a new session."""
        try:
            if self._stream is None:
                raise Unavailable("no stream is open")
            answer = await self._stream.verify(len(committed), draft)
        except DeadlineExceeded:
            raise
        except DraftloopError as error:
            log.warning("verifier session lost", reason=str(error), committed=len(committed))
            if not isinstance(error, InvalidInput):
                self._handle_failure(error)
            elif error.field.startswith(OWN_FIELDS):
                self._drop()  # bad draft or full context: neither client nor replica is to blame
            else:
                raise
            return await self._reopen(committed)
        self._record_success()
        return answer

    async def _reopen(self, committed: Sequence[int]) -> Verification:
        """Opens again, and tries for `reopen_for_s` to find a replica that is alive.

        A replica that failed was alive, however long it took. One that is full will have room, so
        that is tried for MAX_FULL_S.
        """
        began, pause = time.monotonic(), FIRST_PAUSE_S
        give_up_at = began + self._reopen_for_s
        while True:
            try:
                answer = await self.open(committed)
            except DeadlineExceeded:
                raise
            except DraftloopError as error:
                now = time.monotonic()
                if isinstance(error, ServiceFailed):
                    give_up_at = now + self._reopen_for_s
                is_full = isinstance(error, Overloaded) and now - began < MAX_FULL_S
                if self._all_failed() or (now > give_up_at and not is_full):
                    raise _final_error(error) from None
                remaining_s = self._terms.deadline.remaining()
                # random, so that sessions that shared a failed forward do not all meet again,
                # including the one that made it fail
                pause_s = pause * random.uniform(0.5, 1.5)
                await asyncio.sleep(pause_s if remaining_s is None else min(pause_s, remaining_s))
                pause = min(2 * pause, MAX_PAUSE_S)
                continue
            self.reopened += 1
            REOPENED.inc()
            return answer

    def _all_failed(self) -> bool:
        """Whether all known replicas have failed too often at the current text."""
        counts = [self._failures[replica] for replica in self._replicas]
        return bool(counts) and min(counts) >= MAX_FAILURES

    def _handle_failure(self, error: Exception) -> None:
        if self._replica is not None and isinstance(error, ServiceFailed):
            self._failures[self._replica] += 1
        super()._handle_failure(error)

    def _record_success(self) -> None:
        self._failures.clear()
        super()._record_success()


def _error_to_report(first: DraftloopError, second: DraftloopError) -> DraftloopError:
    """The one of two replicas' errors to report: Overloaded first, as it says when to retry."""
    overloaded = [error for error in (first, second) if isinstance(error, Overloaded)]
    return min(overloaded, key=lambda error: error.retry_after_s, default=second)


def _without_address(error: DraftloopError, replica: Replica) -> DraftloopError:
    """The error as clients may see it: addresses of our services go only into the log."""
    if not isinstance(error, Disconnected):
        return error
    log.warning("verifier not reached", address=replica.address, reason=str(error))
    return Unavailable(NOT_REACHED)


def _final_error(error: DraftloopError) -> DraftloopError:
    """The error for the client. An InvalidInput at this stage is not the client's fault."""
    return Unavailable(f"verifier: {error}") if isinstance(error, InvalidInput) else error
