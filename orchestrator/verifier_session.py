"""One request's session on some verifier, as the loop sees it: verdicts, whatever dies."""

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
from draftloop.model_info import ModelInfo
from draftloop.tree import DraftTree, Verification
from orchestrator.clients import VerifierStream
from orchestrator.metrics import REOPENED
from orchestrator.replicas import Replica, Replicas
from orchestrator.session import Session
from orchestrator.stream import Disconnected, ServiceFailed
from orchestrator.terms import SessionTerms

# Between attempts: from one to the next twice as long.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.5
# At the same text, of a replica that is there: what it cannot run it could not the next time. More
# than one, since a forward that fails fails for all that share it, whoever's fault that was.
MOST_FAILURES = 4

log = logs.get(__name__)

NOT_REACHED = "verifier: none can be reached"
OURS = ("draft.", "committed_length")  # fields that clients know nothing of


class VerifierSession(Session[VerifierStream]):
    """Reopened on the best replica whenever it is lost. Raises DeadlineExceeded in time."""

    def __init__(self, replicas: Replicas, terms: SessionTerms, *, reopen_for_s: float) -> None:
        super().__init__(replicas, terms)
        self._reopen_for_s = reopen_for_s
        self._failures: Counter[Replica] = Counter()  # at the text of now
        self._begun = False  # what is said of the request now is said of what we made of it
        self.reopened = 0

    @property
    def max_draft_nodes(self) -> int:
        """Most nodes that it takes in one draft."""
        return self._model.max_draft_nodes if self._model is not None else sys.maxsize

    @property
    def context_length(self) -> int:
        """Most tokens of a text there; a longer one needs another replica."""
        return self._model.context_length if self._model is not None else sys.maxsize

    @property
    def _model(self) -> ModelInfo | None:
        return self._replica.model if self._replica is not None else None

    async def open(self, committed: Sequence[int]) -> Verification:
        """Opens on the best replica; the answer holds the next token.

        Raises Unavailable at once where no replica takes the session, Overloaded where one is full.
        """
        problem: DraftloopError = Unavailable(NOT_REACHED)
        tried: list[Replica] = []
        # Anew after every one that failed: that may have taken a while, and others come and go.
        while (replica := self._next(committed, tried)) is not None:
            tried.append(replica)
            try:
                stream = VerifierStream(replica, self._terms)
                self._enter(replica, stream)
                answer = await stream.open(committed)
            except DeadlineExceeded:
                raise
            except DraftloopError as error:
                if isinstance(error, InvalidInput) and not self._begun:
                    raise  # no other replica could answer otherwise
                problem = _kept(problem, _for_clients(error, replica))
                self._lose(error)
                continue
            self._begun = True
            self._worked()
            self._served(committed)
            return answer
        raise problem

    def _next(self, committed: Sequence[int], tried: Sequence[Replica]) -> Replica | None:
        """The best replica that has not failed yet and has room for the text."""
        for replica in self._by_preference(committed):
            room = replica.model is None or len(committed) < replica.model.context_length
            willing = self._failures[replica] < MOST_FAILURES
            if room and willing and replica not in tried:
                return replica
        return None

    async def verify(self, committed: Sequence[int], draft: DraftTree) -> Verification:
        """The verdict on `draft`; after a loss that on the empty draft, from another session."""
        try:
            if self._stream is None:
                raise Unavailable("no stream is open")
            answer = await self._stream.verify(len(committed), draft)
        except DeadlineExceeded:
            raise
        except DraftloopError as error:
            log.warning("verifier session lost", reason=str(error), committed=len(committed))
            if not isinstance(error, InvalidInput):
                self._lose(error)
            elif error.field.startswith(OURS):
                self._drop()  # a draft, or a full context: the fault neither of client nor replica
            else:
                raise
            return await self._reopen(committed)
        self._worked()
        return answer

    async def _reopen(self, committed: Sequence[int]) -> Verification:
        give_up, pause = time.monotonic() + self._reopen_for_s, FIRST_PAUSE_S
        while True:
            try:
                answer = await self.open(committed)
            except DeadlineExceeded:
                raise
            except DraftloopError as error:
                if time.monotonic() > give_up or self._none_is_left():
                    raise _lost(error) from None
                left = self._terms.deadline.remaining()
                # not all at once that shared a forward: who cannot be run would be among them again
                chosen = pause * random.uniform(0.5, 1.5)
                await asyncio.sleep(chosen if left is None else min(chosen, left))
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            self.reopened += 1
            REOPENED.inc()
            return answer

    def _none_is_left(self) -> bool:
        """Whether all replicas that are there have failed at the text."""
        counts = [self._failures[replica] for replica in self._replicas]
        return bool(counts) and min(counts) >= MOST_FAILURES

    def _lose(self, error: Exception) -> None:
        if self._replica is not None and isinstance(error, ServiceFailed):
            self._failures[self._replica] += 1
        super()._lose(error)

    def _worked(self) -> None:
        self._failures.clear()
        super()._worked()


def _kept(problem: DraftloopError, later: DraftloopError) -> DraftloopError:
    """Of two replicas' problems the one to tell of: who is full knows when to come again."""
    full = [error for error in (problem, later) if isinstance(error, Overloaded)]
    return min(full, key=lambda error: error.retry_after_s, default=later)


def _for_clients(error: DraftloopError, replica: Replica) -> DraftloopError:
    """What clients may hear of it: where our services are is for the log alone."""
    if not isinstance(error, Disconnected):
        return error
    log.warning("verifier not reached", address=replica.address, reason=str(error))
    return Unavailable(NOT_REACHED)


def _lost(error: DraftloopError) -> DraftloopError:
    """What the client is told: that a replica refuses what the request has become is not its."""
    return Unavailable(f"verifier: {error}") if isinstance(error, InvalidInput) else error
