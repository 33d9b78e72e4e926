"""Generations in the background, during which a test can break something."""

from __future__ import annotations

import threading
from typing import Self

import grpc

from protos import generation_pb2 as pb
from protos import generation_pb2_grpc
from protos import speculation_pb2 as shared
from tests.support.waiting import until

MAX_TOKENS = 1500
PATIENCE_S = 300.0


def parameters(
    strategy: str, seed: int = 7, max_draft_tokens: int | None = None
) -> pb.GenerationParameters:
    """A request that is long enough for something to happen before it ends."""
    return pb.GenerationParameters(
        text="class Stack:\n    def __init__(self):\n",
        max_tokens=MAX_TOKENS,
        ignore_eos=True,
        sampling=shared.SamplingParameters(temperature=0.7, seed=seed),
        speculation=pb.SpeculationParameters(strategy=strategy, max_draft_tokens=max_draft_tokens),
    )


class Running:
    """A generation whose tokens arrive in the background.

    `max_draft_tokens` are drafted in every round, even where that does not pay.
    """

    def __init__(
        self, address: str, strategy: str = "speculative", max_draft_tokens: int | None = None
    ) -> None:
        """The default strategy uses no phrases: with them a text could end before a test acts."""
        self.token_ids: list[int] = []
        self.summary = pb.GenerationSummary()
        self.error: grpc.RpcError | None = None
        self._channel = grpc.insecure_channel(address)
        self._call = generation_pb2_grpc.GenerationStub(self._channel).Generate(
            pb.GenerateRequest(parameters=parameters(strategy, max_draft_tokens=max_draft_tokens)),
            timeout=PATIENCE_S,
        )
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._call.cancel()
        self._thread.join()
        self._channel.close()

    def _read(self) -> None:
        try:
            for piece in self._call:
                self.token_ids += piece.token_ids
                if piece.HasField("summary"):
                    self.summary = piece.summary
        except grpc.RpcError as error:
            self.error = error

    def wait_until_under_way(self) -> Self:
        """Returns once some tokens have come and most are still to come."""
        until(lambda: len(self.token_ids) > 8 or self.error, PATIENCE_S)
        assert self.error is None, self.error
        assert len(self.token_ids) < MAX_TOKENS * 3 // 4
        return self

    @property
    def has_ended(self) -> bool:
        """Whether the stream has ended, with all tokens or with an error."""
        return not self._thread.is_alive()

    def wait_for_tokens(self) -> list[int]:
        """All tokens. Fails if the stream ended with an error."""
        self._thread.join(PATIENCE_S)
        assert self.error is None, self.error
        return self.token_ids

    def wait_for_error(self) -> grpc.StatusCode:
        """The status code of the error that ended the stream."""
        self._thread.join(PATIENCE_S)
        assert self.error is not None, "it ended well"
        return self.error.code()
