"""Streams that run in the background, so that a test can act while they are under way."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Self

from protos import generation_pb2 as pb
from tests.e2e.client import CALL_TIMEOUT_S, Client
from tests.support.waiting import until


@dataclass
class Stream:
    """What has arrived of one answer."""

    token_ids: list[int] = field(default_factory=list)
    pieces: int = 0
    summary: pb.GenerationSummary | None = None  # set once the stream has ended


class Streams:
    """One stream per request, all at the same time; use as a context manager."""

    def __init__(self, client: Client, requests: Sequence[pb.GenerationParameters]) -> None:
        self._client = client
        self._requests = requests
        self._streams = [Stream() for _ in requests]
        self._pool = ThreadPoolExecutor(len(requests))

    def __enter__(self) -> Self:
        pairs = zip(self._requests, self._streams, strict=True)
        self._reading = [self._pool.submit(self._read, *pair) for pair in pairs]
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def _read(self, parameters: pb.GenerationParameters, stream: Stream) -> None:
        request = pb.GenerateRequest(parameters=parameters)
        for piece in self._client.stub.Generate(request, timeout=CALL_TIMEOUT_S):
            stream.token_ids += piece.token_ids
            stream.pieces += 1
            if piece.HasField("summary"):
                stream.summary = piece.summary

    def wait_until_under_way(self) -> None:
        """Returns once each stream has had its first round, which follows the prefill's piece."""
        until(lambda: all(each.pieces >= 2 or each.summary for each in self._streams), 60)
        assert self.unfinished_count, "all were over before anything happened"

    @property
    def unfinished_count(self) -> int:
        """The number of streams that have not ended."""
        return sum(each.summary is None for each in self._streams)

    def wait_for_tokens(self) -> list[list[int]]:
        """The tokens of all streams. Raises the error of a stream that failed."""
        for each in self._reading:
            each.result()
        return [each.token_ids for each in self._streams]

    @property
    def figures(self) -> list[pb.SpeculationFigures]:
        """The figures of the streams that have ended."""
        return [each.summary.speculation for each in self._streams if each.summary is not None]
