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
MAX_CONTEXT_TOKENS = 24
# Maximum bytes of a UTF-8 character after its first.
MAX_CONTINUATION_BYTES = 3
INCOMPLETE_UTF8 = "unexpected end of data"  # Python's reason for bytes that more bytes may complete


class DeferredText:
    """The text that each of some tokens made certain, decoded when it is called."""

    def __init__(self, stream: TextStream, token_ids: Sequence[int], *, is_last: bool) -> None:
        self._stream = stream
        self.token_ids = token_ids
        self.is_last = is_last
        self.texts: tuple[str, ...] | None = None

    def __call__(self) -> tuple[str, ...]:
        """One text per token."""
        self._stream.decode_up_to(self)
        assert self.texts is not None
        return self.texts


class TextStream:
    """Turns committed tokens into text pieces whose concatenation is the final text.

    Decoding takes some ten microseconds per token, three times that with cold caches. Without stop
    texts, it can be deferred (`defer`).
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
        self._stop_matchers = [PrefixMatcher(mark) for mark in self._stop]
        self._form = form
        self._min_tokens_left = min_tokens
        self._hidden_token_ids = () if form.ending else stop_token_ids
        self._token_ids = self._context(prompt)
        self._shown = tokenizer.decode(self._token_ids)  # the part of their text already passed on
        self._held = ""
        self._searched = 0  # characters of `_held` already searched for a stop text's beginning
        self._deferred: deque[DeferredText] = deque()
        self.stopped_by: str | None = None  # the stop text that was found

    @property
    def stopped(self) -> bool:
        """Whether a stop text was found."""
        return self.stopped_by is not None

    @property
    def has_stop_texts(self) -> bool:
        """Whether there are stop texts."""
        return bool(self._stop)

    def defer(self, token_ids: Sequence[int], *, is_last: bool) -> DeferredText:
        """A callable that decodes these tokens; with `is_last`, also what was held back."""
        self._deferred.append(DeferredText(self, token_ids, is_last=is_last))
        return self._deferred[-1]

    def decode_up_to(self, last: DeferredText) -> None:
        """Decodes everything deferred up to and including `last`, in order."""
        while last.texts is None:
            deferred = self._deferred.popleft()
            texts = [self.push([token]) for token in deferred.token_ids]
            if deferred.is_last:
                texts[-1] += self.finish()
            deferred.texts = tuple(texts)

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is certain now and was not before. Sets `stopped_by` at a stop text."""
        if self.stopped:
            return ""
        for token in token_ids:
            self._min_tokens_left -= 1
            if token in self._hidden_token_ids:
                continue
            if token in self._form.named_tokens:
                self._held += self._decode_new(only_complete=False) + self._tokenizer.token_text(
                    token
                )
                self._drop_broken_character()
            elif self._tokenizer.changes_text(token):
                self._token_ids.append(token)
        self._held += self._decode_new()
        return self._release()

    def finish(self) -> str:
        """The text held back so far, including a broken character, up to a stop text in it."""
        if self.stopped:
            return ""
        self._held += self._decode_new(only_complete=False)
        released = self._release()
        rest, self._held = self._held, ""
        return released if self.stopped else released + rest

    def _decode_new(self, only_complete: bool = True) -> str:
        text = stable = self._tokenizer.decode(self._token_ids)
        if only_complete and text.endswith(REPLACEMENT):
            stable = self._stable_text(text)
            if len(stable) <= len(self._shown):
                return ""  # the last character is incomplete
        new, self._shown = stable[len(self._shown) :], stable
        if len(self._token_ids) > MAX_CONTEXT_TOKENS:
            self._token_ids = self._invalid_byte_tokens() or self._context(self._token_ids)
            context = self._tokenizer.decode(self._token_ids)
            self._shown = context[: len(context) - (len(text) - len(stable))]
        return new

    def _drop_broken_character(self) -> None:
        """Drops the tokens of a character that was passed on as broken: it stays broken."""
        while self._token_ids and self._shown.endswith(REPLACEMENT):
            self._token_ids.pop()
            self._shown = self._tokenizer.decode(self._token_ids)

    def _stable_text(self, text: str) -> str:
        """The part of a text ending in a broken character that no later token can change."""
        if self._tokenizer.is_byte_level:
            return text[:-1]  # one replacement character stands for all of the last character
        _, error = self._bytes_at_end()
        return self._shown if error is not None and error.reason == INCOMPLETE_UTF8 else text

    def _invalid_byte_tokens(self) -> list[int]:
        """Tokens that make all byte tokens at the end invalid for good; empty if they may be valid.

        Byte fallback decodes a whole run of byte tokens at once. If any byte of the run is invalid,
        every byte becomes a replacement character, whatever further bytes follow.
        """
        run, error = self._bytes_at_end()
        if error is None or error.reason == INCOMPLETE_UTF8:
            return []
        return self._token_ids[len(self._token_ids) - run :][error.start : error.end + 1]

    def _bytes_at_end(self) -> tuple[int, UnicodeDecodeError | None]:
        """Number of byte fallback tokens at the end, and the error in decoding them, if any."""
        run = bytearray()
        for token in reversed(self._token_ids):
            if (byte := self._tokenizer.fallback_byte(token)) is None:
                break
            run.append(byte)
        try:
            run[::-1].decode()
        except UnicodeDecodeError as error:
            return len(run), error
        return len(run), None

    def _context(self, token_ids: Sequence[int]) -> list[int]:
        """The last tokens, beginning with the first byte of a character.

        With sentencepiece's byte fallback, where byte tokens spell characters that the vocabulary
        lacks, a partial character at the beginning would invalidate all bytes after it.
        """
        last = max(0, len(token_ids) - CONTEXT_TOKENS)
        first = max(0, last - MAX_CONTINUATION_BYTES)
        starts = (
            start for start in range(last, first - 1, -1)
            if not start or not self._tokenizer.continues_character(token_ids[start])
        )  # fmt: skip
        return list(token_ids[next(starts, last) :])

    def _release(self) -> str:
        if self._min_tokens_left >= 0:
            released, self._held = self._held, ""
            return released
        hits = [(at, stop) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if hits:
            at, self.stopped_by = min(hits)
            return self._held[: at + len(self.stopped_by) if self._form.ending else at]
        new = self._held[self._searched :]
        keep = self._searched = max(
            (matcher.advance(new) for matcher in self._stop_matchers), default=0
        )
        cut = len(self._held) - keep
        released, self._held = self._held[:cut], self._held[cut:]
        return released


def overlap(text: str, mark: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `mark`."""
    return PrefixMatcher(mark).advance(text[max(0, len(text) - len(mark) + 1) :])


class PrefixMatcher:
    """`overlap` for a growing text, without looking at any character twice."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._prefix_function = _prefix_function(mark)
        self._matched = 0

    def advance(self, text: str) -> int:
        """Appends `text` and returns the overlap of the whole text with the mark."""
        mark, prefix_lengths, matched = self._mark, self._prefix_function, self._matched
        for character in text:
            while matched and mark[matched] != character:
                matched = prefix_lengths[matched - 1]
            matched += mark[matched] == character
            if matched == len(mark):
                matched = prefix_lengths[-1]
        self._matched = matched
        return matched


@functools.lru_cache(maxsize=1024)
def _prefix_function(mark: str) -> tuple[int, ...]:
    """For each prefix of the mark, the length of its longest proper suffix that is a prefix too.

    The failure function of Knuth, Morris and Pratt (1977), which keeps the search linear whatever
    marks and texts clients choose.
    """
    lengths = [0]
    for character in mark[1:]:
        matched = lengths[-1]
        while matched and mark[matched] != character:
            matched = lengths[matched - 1]
        lengths.append(matched + (mark[matched] == character))
    return tuple(lengths)
