"""What runs in one forward: rounds of many sessions, and as much of prompts as is soon done."""

from __future__ import annotations

from draftloop.runtime.forward import Forward
from draftloop.runtime.prefixes import computes_for

MAX_STEP_TOKENS = 2048
# A forward with more committed tokens than this counts as a prompt's; otherwise it is a round's.
ROUND_TOKENS = 16
# Target maximum time of a forward with prompts: all sessions' next tokens wait for it.
LONGEST_S = 0.4
# Minimum prompt chunk: with smaller ones the weights would be read too often.
MIN_PROMPT_TOKENS = 32
GAIN = 0.3


class StepSize:
    """Tracks the time per row of large forwards, and derives how many rows fit in `longest_s`.

    `row_ns`: first guess of the time per row; 0 if unknown.
    """

    def __init__(self, row_ns: float = 0.0, longest_s: float = LONGEST_S) -> None:
        self._row_ns = row_ns
        self._longest_s = longest_s

    @property
    def prompt_tokens(self) -> int:
        """Maximum number of prompt tokens in a forward."""
        wanted = self._longest_s * 1e9 / max(self._row_ns, 1.0)
        return round(min(max(wanted, MIN_PROMPT_TOKENS), MAX_STEP_TOKENS))

    def observe(self, rows: int, nanoseconds: int) -> None:
        """Records a forward; small ones are ignored, as they say nothing about large ones."""
        if rows >= MIN_PROMPT_TOKENS:
            row_ns = nanoseconds / rows
            self._row_ns += (GAIN if self._row_ns else 1.0) * (row_ns - self._row_ns)


class Step:
    """A forward being assembled for one model.

    It has at most MAX_STEP_TOKENS, and at most the model's step size of prompt tokens. The first
    wish always fits.
    """

    def __init__(self, first: Forward) -> None:
        self._model = first.model
        self._rows, self._prompts = first.rows, prompt_tokens(first)
        self._slots = [first.slot] if self._prompts else []

    def try_add(self, wish: Forward) -> bool:
        """Adds the wish if it fits and no other one in the step computes rows that it can copy."""
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
    """Number of prompt tokens of a forward; 0 if it is a round's."""
    committed = len(wish.committed_token_ids)
    return committed if committed > ROUND_TOKENS else 0
