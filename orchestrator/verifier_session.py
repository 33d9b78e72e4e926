"""One request's session on some verifier, as the loop sees it: verdicts, whatever dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from draftloop import logs
from draftloop.errors import (
    DeadlineExceeded,
    DraftloopError,
    InvalidInput,
    Overloaded,
    Unavailable,
)
from draftloop.tree import DraftTree, Verification
from orchestrator.clients import VerifierStream
from orchestrator.metrics import REOPENED
from orchestrator.replicas import Replicas
from orchestrator.session import Session
from orchestrator.terms import SessionTerms

REOPEN_PAUSE_S = 0.05
# No other replica could answer these otherwise.
FINAL = (InvalidInput, DeadlineExceeded)

log = logs.get(__name__)


class VerifierSession(Session[VerifierStream]):
    """Reopened on the best replica whenever it is lost. Raises DeadlineExceeded in time."""

    def __init__(self, replicas: Replicas, terms: SessionTerms, *, reopen_for_s: float) -> None:
        super().__init__(replicas, terms)
        self._reopen_for_s = reopen_for_s
        self.reopened = 0

    async def open(self, committed: Sequence[int]) -> Verification:
        """Opens on the best replica; the answer holds the next token.

        Raises Unavailable or Overloaded at once where no replica takes the session.
        """
        problem: DraftloopError = Unavailable("verifier: none can be reached")
        for replica in self._by_preference(committed):
            stream = VerifierStream(replica, self._terms)
            self._enter(replica, stream)
            try:
                answer = await stream.open(committed)
            except FINAL:
                raise
            except DraftloopError as error:
                problem = error
                self._lose(error)
                continue
            self._worked()
            self._served(committed)
            return answer
        raise problem

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
            elif error.field.startswith("draft."):
                self._drop()  # whoever drafted that, it is the fault neither of client nor replica
            else:
                raise
            return await self._reopen(committed)
        self._worked()
        return answer

    async def _reopen(self, committed: Sequence[int]) -> Verification:
        give_up = time.monotonic() + self._reopen_for_s
        while True:
            try:
                answer = await self.open(committed)
            except (Unavailable, Overloaded):
                if time.monotonic() > give_up:
                    raise
                await asyncio.sleep(REOPEN_PAUSE_S)
                continue
            self.reopened += 1
            REOPENED.inc()
            return answer
