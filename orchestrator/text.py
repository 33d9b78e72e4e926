"""Streaming text: whole characters only, and nothing that may be the start of a stop text."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Collection, Sequence

from draftloop.request import USUAL, TextForm
from orchestrator.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
# Byte-level and sentencepiece tokenizers need a few preceding tokens to get spaces and joins right.
CONTEXT_TOKENS = 6
# When so many tokens are held, those already decoded are dropped, down to the context.
MOST_CONTEXT_TOKENS = 24
# Maximum bytes of a UTF-8 character after its first.
MOST_CONTINUING = 3
UNFINISHED = "unexpected end of data"  # Python's reason for bytes that more bytes may complete


class Told:
    """The text that each of some tokens made certain, decoded when it is called."""

    def __init__(self, stream: TextStream, token_ids: Sequence[int], *, ends: bool) -> None:
        self._stream = stream
        self.token_ids = token_ids
        self.ends = ends
        self.texts: tuple[str, ...] | None = None

    def __call__(self) -> tuple[str, ...]:
        """One text per token."""
        self._stream.tell_up_to(self)
        assert self.texts is not None
        return self.texts


class TextStream:
    """Turns committed tokens into text pieces whose concatenation is the final text.

    Decoding takes some ten microseconds per token, three times that with cold caches. Without stop
    texts, it can be deferred (`later`).
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        stop: Sequence[str],
        form: TextForm = USUAL,
        *,
        stop_token_ids: Collection[int] = (),
        min_tokens: int = 0,
    ) -> None:
        """`stop_token_ids`: tokens that end the output and, like a stop text, are no part of it.

        No stop text is looked for in the text of the first `min_tokens` tokens.
        """
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._begun = [Beginning(mark) for mark in self._stop]
        self._form = form
        self._early = min_tokens
        self._silent = () if form.ending else stop_token_ids
        self._token_ids = self._context(prompt)
        self._shown = tokenizer.decode(self._token_ids)  # the part of their text already passed on
        self._held = ""
        self._looked_at = 0  # characters of `_held` already searched for a stop text's beginning
        self._waiting: deque[Told] = deque()
        self.stopped_by: str | None = None  # the stop text that was found

    @property
    def stopped(self) -> bool:
        """Whether a stop text was found."""
        return self.stopped_by is not None

    @property
    def may_stop(self) -> bool:
        """Whether there are stop texts."""
        return bool(self._stop)

    def later(self, token_ids: Sequence[int], *, ends: bool) -> Told:
        """A callable that decodes these tokens; with `ends`, it also returns what was held back."""
        self._waiting.append(Told(self, token_ids, ends=ends))
        return self._waiting[-1]

    def tell_up_to(self, last: Told) -> None:
        """Decodes everything deferred up to and including `last`, in order."""
        while last.texts is None:
            told = self._waiting.popleft()
            texts = [self.push([token]) for token in told.token_ids]
            if told.ends:
                texts[-1] += self.finish()
            told.texts = tuple(texts)

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is certain now and was not before. Sets `stopped_by` at a stop text."""
        if self.stopped:
            return ""
        for token in token_ids:
            self._early -= 1
            if token in self._silent:
                continue
            if token in self._form.named_tokens:
                self._held += self._decoded(whole=False) + self._tokenizer.token_text(token)
                self._leave_broken()
            elif self._tokenizer.shows(token):
                self._token_ids.append(token)
        self._held += self._decoded()
        return self._release()

    def finish(self) -> str:
        """The text held back so far, including a broken character, up to a stop text in it."""
        if self.stopped:
            return ""
        self._held += self._decoded(whole=False)
        released = self._release()
        rest, self._held = self._held, ""
        return released if self.stopped else released + rest

    def _decoded(self, whole: bool = True) -> str:
        text = certain = self._tokenizer.decode(self._token_ids)
        if whole and text.endswith(REPLACEMENT):
            certain = self._certain(text)
            if len(certain) <= len(self._shown):
                return ""  # the last character is incomplete
        new, self._shown = certain[len(self._shown) :], certain
        if len(self._token_ids) > MOST_CONTEXT_TOKENS:
            self._token_ids = self._breaking() or self._context(self._token_ids)
            context = self._tokenizer.decode(self._token_ids)
            self._shown = context[: len(context) - (len(text) - len(certain))]
        return new

    def _leave_broken(self) -> None:
        """Drops the tokens of a character that was passed on as broken: it stays broken."""
        while self._token_ids and self._shown.endswith(REPLACEMENT):
            self._token_ids.pop()
            self._shown = self._tokenizer.decode(self._token_ids)

    def _certain(self, text: str) -> str:
        """The part of a text ending in a broken character that no later token can change."""
        if self._tokenizer.bytewise:
            return text[:-1]  # one replacement character stands for all of the last character
        _, flaw = self._bytes_at_end()
        return self._shown if flaw is not None and flaw.reason == UNFINISHED else text

    def _breaking(self) -> list[int]:
        """Tokens that make all byte tokens at the end invalid for good; empty if they may be valid.

        Byte fallback decodes a whole run of byte tokens at once. If any byte of the run is invalid,
        every byte becomes a replacement character, whatever further bytes follow.
        """
        run, flaw = self._bytes_at_end()
        if flaw is None or flaw.reason == UNFINISHED:
            return []
        return self._token_ids[len(self._token_ids) - run :][flaw.start : flaw.end + 1]

    def _bytes_at_end(self) -> tuple[int, UnicodeDecodeError | None]:
        """Number of byte fallback tokens at the end, and the error in decoding them, if any."""
        run = bytearray()
        for token in reversed(self._token_ids):
            if (byte := self._tokenizer.fallback_byte(token)) is None:
                break
            run.append(byte)
        try:
            run[::-1].decode()
        except UnicodeDecodeError as flaw:
            return len(run), flaw
        return len(run), None

    def _context(self, token_ids: Sequence[int]) -> list[int]:
        """The last tokens, beginning with the first byte of a character.

        With sentencepiece's byte fallback, where byte tokens spell characters that the vocabulary
        lacks, a partial character at the beginning would invalidate all bytes after it.
        """
        last = max(0, len(token_ids) - CONTEXT_TOKENS)
        first = max(0, last - MOST_CONTINUING)
        starts = (
            start for start in range(last, first - 1, -1)
            if not start or not self._tokenizer.continues_character(token_ids[start])
        )  # fmt: skip
        return list(token_ids[next(starts, last) :])

    def _release(self) -> str:
        if self._early >= 0:
            released, self._held = self._held, ""
            return released
        hits = [(at, stop) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if hits:
            at, self.stopped_by = min(hits)
            return self._held[: at + len(self.stopped_by) if self._form.ending else at]
        new = self._held[self._looked_at :]
        keep = self._looked_at = max((begun.behind(new) for begun in self._begun), default=0)
        cut = len(self._held) - keep
        released, self._held = self._held[:cut], self._held[cut:]
        return released


def overlap(text: str, mark: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `mark`."""
    return Beginning(mark).behind(text[max(0, len(text) - len(mark) + 1) :])


class Beginning:
    """`overlap` for a growing text, without looking at any character twice."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._shorter = _shorter(mark)
        self._matched = 0

    def behind(self, text: str) -> int:
        """Appends `text` and returns the overlap of the whole text with the mark."""
        mark, shorter, matched = self._mark, self._shorter, self._matched
        for letter in text:
            while matched and mark[matched] != letter:
                matched = shorter[matched - 1]
            matched += mark[matched] == letter
            if matched == len(mark):
                matched = shorter[-1]
        self._matched = matched
        return matched


@functools.lru_cache(maxsize=1024)
def _shorter(mark: str) -> tuple[int, ...]:
    """For each prefix of the mark, the length of its longest proper suffix that is a prefix too.

    The failure function of Knuth, Morris and Pratt (1977), which keeps the search linear whatever
    marks and texts clients choose.
    """
    lengths = [0]
    for letter in mark[1:]:
        matched = lengths[-1]
        while matched and mark[matched] != letter:
            matched = lengths[matched - 1]
        lengths.append(matched + (mark[matched] == letter))
    return tuple(lengths)
