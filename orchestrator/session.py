"""Base class of a request's sessions on verifier and drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from draftloop.errors import DeadlineExceeded
from orchestrator.replicas import Replica, Replicas
from orchestrator.stream import SessionGone, Stream
from orchestrator.terms import SessionTerms

AnyStream = TypeVar("AnyStream", bound=Stream)


class Session(Generic[AnyStream]):
    """A stream to one of the replicas, or to none at the moment."""

    def __init__(self, replicas: Replicas, terms: SessionTerms) -> None:
        self._replicas = replicas
        self._terms = terms
        self._stream: AnyStream | None = None
        self._replica: Replica | None = None

    async def close(self) -> None:
        """Frees the session. To be called at its end, however it ended."""
        if self._stream is not None:
            await self._stream.close()
        self._detach()

    def _attach(self, replica: Replica, stream: AnyStream) -> None:
        replica.sessions += 1
        self._replica, self._stream = replica, stream

    def _by_preference(self, committed: Sequence[int]) -> list[Replica]:
        return self._replicas.by_preference(committed, self._terms.request.prefix_group)

    def _record_prefix(self, committed: Sequence[int]) -> None:
        """Notes which replica has computed this text, so that similar ones can go there."""
        request = self._terms.request
        if self._replica is not None and not request.prefix_read_only:
            self._replicas.record_prefix(self._replica, committed, request.prefix_group)

    def _record_success(self) -> None:
        if self._replica is not None:
            self._replica.record_success()
        self._report_load()

    def _report_load(self) -> None:
        """Passes on the load that the replica's last answer reported."""
        if self._replica is not None and self._stream is not None and self._stream.load is not None:
            self._replica.report(self._stream.load)

    def _handle_failure(self, error: Exception) -> None:
        """Drops the stream and counts a failure of the replica.

        A passed client deadline is not the replica's failure, nor that it freed an idle session.
        """
        if self._replica is not None and not isinstance(error, (DeadlineExceeded, SessionGone)):
            self._replica.record_failure()
        self._drop()

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
        self._detach()

    def _detach(self) -> None:
        if self._replica is not None:
            self._replica.sessions -= 1
        self._stream = self._replica = None
