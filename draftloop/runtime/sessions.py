"""The request that opens a session on either model service, and the session's sampler."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from draftloop.errors import InvalidInput
from draftloop.request import SamplingParameters, check_length, check_token_ids
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.prefixes import Text
from draftloop.runtime.sampling import Sampler

# Maximum tokens that a grammar processes on the event loop, at about 15 µs each.
MAX_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The committed tokens (prompt first, then output when reopening) and how to choose more."""

    session_id: str
    token_ids: tuple[int, ...]
    prompt_length: int
    sampling: SamplingParameters
    stop_token_ids: frozenset[int] = frozenset()
    prefix_group: str | None = None
    prefix_read_only: bool = False

    def text(self) -> Text | None:
        """The text whose prefix may be shared with other sessions; None if not allowed to."""
        if self.prefix_group is None:
            return None
        return Text(self.token_ids, self.prefix_group, self.prefix_read_only)

    def validate(self, model: LanguageModel) -> None:
        """Raises InvalidInput naming field and rule; each service adds its own checks."""
        check_token_ids("token_ids", self.token_ids, model.vocabulary_size)
        check_length("token_ids", len(self.token_ids), model.context_length)
        if not 1 <= self.prompt_length <= len(self.token_ids):
            rule = f"must be from 1 to the {len(self.token_ids)} token_ids"
            raise InvalidInput("prompt_length", rule, self.prompt_length)
        self.sampling.validate(model.vocabulary_size)

    def sampler(self, model: LanguageModel) -> Sampler:
        """A sampler that has observed these tokens. Raises InvalidInput for an invalid grammar."""
        grammar = self.sampling.grammar
        follower = None if grammar is None else model.grammars.follow(grammar)
        sampler = Sampler(self.sampling, model.vocabulary_size, model.device, follower)
        sampler.observe_prompt(self.token_ids[: self.prompt_length])
        sampler.observe_output(self.token_ids[self.prompt_length :])
        return sampler

    async def ready_sampler(self, model: LanguageModel) -> Sampler:
        """`sampler`, but in a thread if it would block the event loop for long.

        On a GPU, penalties and biases are copied there once the running forward has ended. A
        grammar may have to process a long output or be compiled again: it was compiled before the
        session waited for its slot, and may have been evicted since.
        """
        grammar, output = self.sampling.grammar, len(self.token_ids) - self.prompt_length
        on_cpu = model.device.type == "cpu"
        quick = grammar is None or (output <= MAX_AT_ONCE and model.grammars.is_compiled(grammar))
        if on_cpu and quick:
            return self.sampler(model)
        return await asyncio.to_thread(self.sampler, model)
