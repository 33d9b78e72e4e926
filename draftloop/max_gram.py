"""Max-gram, the statistical drafter at the end of a cascade (2312.11462, section 3).

It copies on from where the longest suffix of the text occurred before, then goes from token to most
frequent successor. It costs microseconds, so its tokens need not be right often.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Collection, Sequence

LONGEST_SUFFIX = 8
MOST_COPIED = 10
TOKEN_BYTES = array("i").itemsize


class MaxGram:
    """An index of one growing text: prompt first, then what is committed.

    Every token costs `LONGEST_SUFFIX` entries, and a proposal no more look-ups than that.
    """

    def __init__(self, token_ids: Sequence[int], stop_token_ids: Collection[int] = ()) -> None:
        self._stop_token_ids = frozenset(stop_token_ids)
        self._text: list[int] = []
        # By last token: run of 1 to LONGEST_SUFFIX tokens, as bytes -> where in the text its latest
        # successor stands. One dictionary would grow by a million entries in one go, and the
        # garbage collector would look at as many tuples.
        self._next_places: defaultdict[int, dict[bytes, int]] = defaultdict(dict)
        self._successors: defaultdict[int, dict[int, int]] = defaultdict(dict)  # -> times seen
        self._favourites: dict[int, int] = {}
        self.extend(token_ids)

    def __len__(self) -> int:
        return len(self._text)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Takes in the text's next tokens."""
        text, recent = self._text, self._text[-LONGEST_SUFFIX:]
        read = _as_bytes([*recent, *token_ids])
        for number, token in enumerate(token_ids, start=len(recent)):
            if text:
                places, end = self._next_places[text[-1]], number * TOKEN_BYTES
                for start in range(max(end - LONGEST_SUFFIX * TOKEN_BYTES, 0), end, TOKEN_BYTES):
                    places[read[start:end]] = len(text)
                self._count(text[-1], token)
            text.append(token)

    def _count(self, token: int, successor: int) -> None:
        counts = self._successors[token]
        counts[successor] = counts.get(successor, 0) + 1
        # Of equally frequent ones the latest is the favourite.
        if counts[successor] >= counts[self._favourites.setdefault(token, successor)]:
            self._favourites[token] = successor

    def propose(self, tail: Sequence[int], most: int) -> list[tuple[int, float]]:
        """At most `most` tokens that may follow the text and then `tail`, each with a score.

        The score says how sure it is, above 0 and below 1, before any calibration. Nothing comes
        after a stop token, and nothing at all behind a token that was not seen before.
        """
        written = list(tail)
        proposed = self._copied(written, min(most, MOST_COPIED))
        while proposed and len(proposed) < most and written[-1] not in self._stop_token_ids:
            token = self._favourites.get(written[-1])
            if token is None:
                break
            counts = self._successors[written[-1]]
            proposed.append((token, counts[token] / (sum(counts.values()) + 1)))
            written.append(token)
        return proposed

    def _copied(self, written: list[int], most: int) -> list[tuple[int, float]]:
        """What came after the longest known suffix; `written` grows by it.

        Past its end the text goes on with `written` itself, so that a period repeats.
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
        """Where the text goes on behind the longest suffix that is known, and its length or 0."""
        recent = (self._text[-LONGEST_SUFFIX:] + written)[-LONGEST_SUFFIX:]
        places = self._next_places.get(recent[-1], {}) if recent else {}
        suffix = _as_bytes(recent)
        for start in range(len(recent)):
            place = places.get(suffix[start * TOKEN_BYTES :])
            if place is not None:
                return place, len(recent) - start
        return 0, 0


def _as_bytes(token_ids: Sequence[int]) -> bytes:
    return array("i", token_ids).tobytes()
