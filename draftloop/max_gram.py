"""Max-gram, the statistical drafter at the end of a cascade (2312.11462, section 3).

It copies what followed an earlier occurrence of the longest suffix of the text. After that, it goes
from each token to its most frequent successor. A proposal costs microseconds, so its tokens need
not be right often.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence

MAX_SUFFIX = 8
MAX_COPIED = 10
TOKEN_BITS = 31


class MaxGram:
    """An index of one growing text: prompt first, then what is committed.

    Every token adds one entry for the runs of tokens that end with it, and one for the pair of it
    and its predecessor. A proposal needs at most `MAX_SUFFIX` look-ups.
    """

    def __init__(self, token_ids: Sequence[int], stop_token_ids: Collection[int] = ()) -> None:
        self._stop_token_ids = frozenset(stop_token_ids)
        self._text = array("i")
        # Run of 1 to MAX_SUFFIX tokens, as bytes -> position in the text of its latest
        # successor. A run has no entry if that position is the same as for the run without its
        # first token: the tokens before the position then show that the longer run occurred.
        self._next_places: dict[bytes, int] = {}
        self._pairs: dict[int, int] = {}  # a token and its successor as one number -> times seen
        self._followed: dict[int, int] = {}  # token -> times seen with a successor
        self._favourites: dict[int, int] = {}
        self.extend(token_ids)

    def __len__(self) -> int:
        return len(self._text)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Appends tokens to the text and updates the index."""
        text = self._text
        for token in token_ids:
            if text:
                self._record_position(text[-MAX_SUFFIX:])
                self._count(text[-1], token)
            text.append(token)

    def _record_position(self, recent: array[int]) -> None:
        """Records the text's end as the latest position after each run of tokens that ends there.

        `recent` holds the last tokens of the text, up to MAX_SUFFIX.
        """
        places, text = self._next_places, self._text
        run, length = recent[-1:].tobytes(), 1
        before = places.get(run)
        places[run] = len(text)
        while before is not None:
            shared = self._matching_length(before, recent, length)
            length = shared + 1
            if length <= min(MAX_SUFFIX, before):  # the run one token longer differs
                places[text[before - length : before].tobytes()] = before
            if length > len(recent):
                break
            before = places.pop(recent[-length:].tobytes(), None)

    def _matching_length(self, place: int, recent: array[int], least: int) -> int:
        """How many tokens before `place` equal the last of `recent`; `least` are known to."""
        text, most = self._text, min(place, len(recent))
        while least < most and text[place - 1 - least] == recent[-1 - least]:
            least += 1
        return least

    def _count(self, token: int, successor: int) -> None:
        pairs, pair = self._pairs, token << TOKEN_BITS | successor
        pairs[pair] = pairs.get(pair, 0) + 1
        self._followed[token] = self._followed.get(token, 0) + 1
        # Of equally frequent successors, the latest is the favourite.
        favourite = self._favourites.setdefault(token, successor)
        if pairs[pair] >= pairs[token << TOKEN_BITS | favourite]:
            self._favourites[token] = successor

    def propose(self, tail: Sequence[int], most: int) -> list[tuple[int, float]]:
        """At most `most` tokens that may follow the text and then `tail`, each with a score.

        The score, above 0 and below 1, is the confidence before calibration. Nothing is proposed
        after a stop token or after a token that was not seen before.
        """
        written = list(tail)
        proposed = self._copied(written, min(most, MAX_COPIED))
        while proposed and len(proposed) < most and written[-1] not in self._stop_token_ids:
            token = self._favourites.get(written[-1])
            if token is None:
                break
            seen = self._pairs[written[-1] << TOKEN_BITS | token]
            proposed.append((token, seen / (self._followed[written[-1]] + 1)))
            written.append(token)
        return proposed

    def _copied(self, written: list[int], most: int) -> list[tuple[int, float]]:
        """Tokens copied from after the longest known suffix; they are appended to `written` too.

        Beyond the end of the text, copying continues in `written` itself, so that a period repeats.
        """
        text, copied = self._text, list[tuple[int, float]]()
        place, matched = self._longest_match(written)
        if not matched:
            return copied
        for source in range(place, place + most):
            beyond = source - len(text)
            token = text[source] if beyond < 0 else written[beyond]
            copied.append((token, matched / (matched + 1)))
            written.append(token)
            if token in self._stop_token_ids:
                break
        return copied

    def _longest_match(self, written: list[int]) -> tuple[int, int]:
        """Position after the longest known suffix in the text, and that suffix's length or 0."""
        tail = array("i", written[-MAX_SUFFIX:])
        recent = (self._text[-MAX_SUFFIX:] + tail)[-MAX_SUFFIX:]
        place, matched = 0, 0
        while matched < len(recent):
            longer = self._next_places.get(recent[-1 - matched :].tobytes())
            if longer is None:
                break
            place, matched = longer, self._matching_length(longer, recent, matched + 1)
        return place, matched
