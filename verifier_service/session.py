"""One generation on the verifier: committed tokens, cache slot, sampler and last answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field

from draftloop.errors import InvalidInput, StaleSession
from draftloop.logprobs import PromptLogprobs
from draftloop.request import check_top_logprobs
from draftloop.runtime.forward import Forward
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.prefixes import Text
from draftloop.runtime.sampling import Sampler
from draftloop.runtime.sessions import Opening
from draftloop.tree import MAX_SUCCESSORS, DraftTree, Verification


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest(Opening):
    """What opens a session."""

    successors: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def text(self) -> Text | None:
        """None if the prompt's log-probabilities are wanted: shared rows have no logits."""
        return None if self.prompt_logprobs is not None else Opening.text(self)

    def validate(self, model: LanguageModel) -> None:
        """Also limits the extras (successors, log-probabilities) to what verdicts can carry."""
        Opening.validate(self, model)
        if self.successors > MAX_SUCCESSORS:
            rule = f"must be at most {MAX_SUCCESSORS}"
            raise InvalidInput("successors", rule, self.successors)
        check_top_logprobs(self.logprobs)
        check_top_logprobs(self.prompt_logprobs, "prompt_logprobs")
        if self.prompt_logprobs is not None and self.prompt_length != len(self.token_ids):
            rule = "must be left out where there is output already"
            raise InvalidInput("prompt_logprobs", rule, self.prompt_logprobs)


@dataclass(slots=True)
class VerifierSession:
    """State of one session.

    Invariant between rounds: slot.length < len(committed), as the last token was not run yet.
    The last draft's rows stay pending in the slot until `prepare` or the next round keeps the
    accepted ones.
    """

    model: LanguageModel
    slot: Slot
    request: SessionRequest
    # Whether no other session waits for the engine; called on the engine's thread.
    is_alone: Callable[[], bool] = lambda: False
    sampler: Sampler = field(init=False)
    committed: list[int] = field(init=False)
    prompt_logprobs: PromptLogprobs | None = None  # from the first round on, if asked for
    last_draft: DraftTree | None = None
    last_answer: Verification | None = None
    ready_sampler: InitVar[Sampler | None] = None  # None: one is created here

    def __post_init__(self, ready_sampler: Sampler | None) -> None:
        self.committed = list(self.request.token_ids)
        self.slot.follow(self.committed)
        self.sampler = ready_sampler or self.request.sampler(self.model)

    def commit(self, token_ids: Sequence[int]) -> None:
        """Makes tokens final."""
        self.committed.extend(token_ids)
        self.sampler.observe_output(token_ids)

    def fits_one_call(self, forward: Forward) -> bool:
        """Whether the forward and the choice of tokens after it can be one compiled call."""
        prepared = self.model.prepared
        return (
            prepared is not None
            and prepared.can_run(forward)
            and self.sampler.is_plain_except_grammar
            and self.request.logprobs is None
            and self.is_alone()
        )

    def prepare(self, positions: int) -> None:
        """Does the part of the next round that needs no draft; optional.

        Keeps the keys and values of accepted nodes, which takes milliseconds if a tree's branch is
        moved in hundreds of layers, and computes the noise of the next `positions` positions.
        """
        self.slot.advance(self.committed)
        self.sampler.prepare(len(self.committed), positions)

    def stored_answer(self, committed_length: int, draft: DraftTree) -> Verification | None:
        """The stored answer if the message repeats the last one; else None.

        Raises StaleSession if the message assumes another committed length than the session's.
        """
        answer = self.last_answer
        repeated = answer is not None and answer.committed_length == committed_length
        if repeated and draft == self.last_draft:
            return answer
        if committed_length != len(self.committed):
            raise StaleSession(assumed=committed_length, actual=len(self.committed))
        return None

    def check_draft(self, draft: DraftTree) -> None:
        """Raises InvalidInput unless the draft is a tree that fits vocabulary and context."""
        options = self.model.options
        draft.validate(
            vocabulary_size=self.model.vocabulary_size, max_nodes=options.max_draft_nodes
        )
        deepest = max(draft.depths(), default=0)
        room = self.model.context_length - len(self.committed)
        if room < 1:
            rule = f"must be below the context length, {self.model.context_length}"
            raise InvalidInput("committed_length", rule, len(self.committed))
        if deepest >= room:
            rule = f"must leave room for the bonus token: depth at most {room - 1}"
            raise InvalidInput("draft.parents", rule, f"depth {deepest}")
