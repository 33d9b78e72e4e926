"""The client for threads: `AsyncClient` on an event loop in the background."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Self, Unpack

from draftloop.client.async_client import DEFAULT_ADDRESS, AsyncClient
from draftloop.client.async_stream import AsyncStream
from draftloop.client.loop_thread import LoopThread
from draftloop.client.options import Options, Prompt
from draftloop.client.retry import DEFAULT_RETRY, Retry
from draftloop.completion import Completion, DeploymentInfo, Piece, Summary
from draftloop.errors import DraftloopError
from draftloop.tls import ClientTls


class Stream:
    """`AsyncStream` for threads: the same contract, with `for` and `with`.

    Any thread may call `cancel`, even while another one waits for a piece.
    """

    def __init__(self, stream: AsyncStream, thread: LoopThread) -> None:
        self._stream = stream
        self._thread = thread

    @property
    def summary(self) -> Summary:
        """See AsyncStream.summary."""
        return self._stream.summary

    def cancel(self) -> None:
        """Tells the server to stop; no more pieces follow."""
        self._thread.call_soon(self._stream.cancel)

    def read(self) -> Piece | None:
        """The next piece; None after the last one."""
        return self._thread.run(self._stream.read())

    def __next__(self) -> Piece:
        piece = self.read()
        if piece is None:
            raise StopIteration
        return piece

    def __iter__(self) -> Iterator[Piece]:
        # Each loop gets its own generator, which is closed when the loop is left.
        try:
            while (piece := self.read()) is not None:
                yield piece
        finally:
            self.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


class Client:
    """`AsyncClient` without asyncio: the same calls, results and errors; any thread may call.

    Use it as a context manager, or call `close`. Do not use it inside a running event loop, which
    every call would block.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        api_key: str | None = None,
        tls: ClientTls | None = None,
        timeout: float | None = None,
        retry: Retry = DEFAULT_RETRY,
    ) -> None:
        self._client = AsyncClient(address, api_key=api_key, tls=tls, timeout=timeout, retry=retry)
        self._thread = LoopThread()

    def __repr__(self) -> str:
        return repr(self._client).replace(AsyncClient.__name__, type(self).__name__, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels running calls and disconnects; calls that wait in other threads fail."""
        with contextlib.suppress(DraftloopError):  # another thread was faster
            self._thread.run(self._client.close())
        self._thread.stop()

    def generate(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> Completion:
        """See AsyncClient.generate."""
        return self._thread.run(self._client.generate(prompt, timeout=timeout, **options))

    def stream(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> Stream:
        """See AsyncClient.stream."""
        return Stream(self._client.stream(prompt, timeout=timeout, **options), self._thread)

    def tokenize(self, text: str, *, timeout: float | None = None) -> tuple[int, ...]:
        """See AsyncClient.tokenize."""
        return self._thread.run(self._client.tokenize(text, timeout=timeout))

    def detokenize(self, token_ids: Sequence[int], *, timeout: float | None = None) -> str:
        """See AsyncClient.detokenize."""
        return self._thread.run(self._client.detokenize(token_ids, timeout=timeout))

    def info(self, *, timeout: float | None = None) -> DeploymentInfo:
        """See AsyncClient.info."""
        return self._thread.run(self._client.info(timeout=timeout))
