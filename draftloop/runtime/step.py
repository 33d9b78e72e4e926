"""What runs as one forward: rounds of many sessions, and as much of prompts as is soon done."""

from __future__ import annotations

from draftloop.runtime.forward import Forward
from draftloop.runtime.prefixes import computes_for

MAX_STEP_TOKENS = 2048
# Committed tokens of a forward up to which it is a round; with more it is a prompt's.
ROUND_TOKENS = 16
# Aim at forwards with prompts no longer than this: everybody's next tokens wait until one ends.
LONGEST_S = 0.4
# A prompt in smaller pieces would have the weights read too often.
LEAST_PROMPT_TOKENS = 32
GAIN = 0.3


class StepSize:
    """Follows what a row of a large forward takes, of which none should take `longest_s`.

    `row_ns`: a first guess; 0 if there is none.
    """

    def __init__(self, row_ns: float = 0.0, longest_s: float = LONGEST_S) -> None:
        self._row_ns = row_ns
        self._longest_s = longest_s

    @property
    def prompt_tokens(self) -> int:
        """Most tokens of prompts in a forward."""
        wanted = self._longest_s * 1e9 / max(self._row_ns, 1.0)
        return round(min(max(wanted, LEAST_PROMPT_TOKENS), MAX_STEP_TOKENS))

    def observe(self, rows: int, nanoseconds: int) -> None:
        """Takes in a forward; small ones say nothing about large ones."""
        if rows >= LEAST_PROMPT_TOKENS:
            row_ns = nanoseconds / rows
            self._row_ns += (GAIN if self._row_ns else 1.0) * (row_ns - self._row_ns)


class Step:
    """One forward in the making: of one model, up to MAX_STEP_TOKENS, and its step size of prompts.

    The first wish fits, however large.
    """

    def __init__(self, first: Forward) -> None:
        self._model = first.model
        self._rows, self._prompts = first.rows, prompt_tokens(first)
        self._slots = [first.slot] if self._prompts else []

    def takes(self, wish: Forward) -> bool:
        """Adds the wish if it fits, and no other one computes a part of it."""
        prompt = prompt_tokens(wish)
        most = self._model.step_size.prompt_tokens
        fits = not prompt or not self._prompts or self._prompts + prompt <= most
        if wish.model is not self._model or self._rows + wish.rows > MAX_STEP_TOKENS or not fits:
            return False
        if wish.renewed is not None and any(computes_for(slot, wish.slot) for slot in self._slots):
            return False
        if prompt:
            self._slots.append(wish.slot)
        self._rows += wish.rows
        self._prompts += prompt
        return True


def prompt_tokens(wish: Forward) -> int:
    """Tokens of a prompt in it; 0 where it is a round's."""
    committed = len(wish.committed_token_ids)
    return committed if committed > ROUND_TOKENS else 0
