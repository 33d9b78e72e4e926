"""The orchestrator's part of `fused`: what is verified, and when the draft model is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

import pytest

import orchestrator.drafting
from benchmarks.virtual import Clock
from draftloop.cost_line import cost_line
from draftloop.errors import Unavailable
from draftloop.model_info import CostPoint
from draftloop.patience import Patience
from draftloop.speculation import FUSED
from draftloop.tree import (
    EMPTY_TREE,
    ROOT,
    Draft,
    DraftBudget,
    DraftEnd,
    DraftTree,
    ServiceTimings,
    TokenSource,
    Verdict,
)
from orchestrator.budget import Controller
from orchestrator.choice import ModelChoice
from orchestrator.costs import VerifyCost
from orchestrator.figures import SpeculationFigures
from orchestrator.fused import FusedDrafting, _likeliest_leaf
from orchestrator.gains import TRY_ROUNDS, USUAL_FORWARDS, Gains
from orchestrator.outcome import RoundOutcome
from orchestrator.selection import Offer
from phrase_store.session import PhraseSession

PLAIN_NS = 1e6
MODEL = TokenSource.DRAFT_MODEL
LINE = VerifyCost((CostPoint(1, 1_000_000), CostPoint(33, 2_000_000)))


class TickingClock(Clock):
    """A clock that advances by the time of planning at every reading."""

    def perf_counter_ns(self) -> int:
        self.advance(PLAN_NS)
        return super().perf_counter_ns()


CLOCK, PLAN_NS = TickingClock(), 50_000


@pytest.fixture(autouse=True)
def _test_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the test's clock counts."""
    monkeypatch.setattr(orchestrator.drafting, "time", CLOCK)


class ScriptedDrafter:
    """Answers with a chain, or is gone; records offers and verdicts."""

    def __init__(self, length: int = 4, estimate: float = 0.9, gone: bool = False) -> None:
        self.length, self.estimate, self.gone = length, estimate, gone
        self.offers: list[DraftTree] = []
        self.verdicts: list[Verdict | None] = []
        self.is_requested = False
        self.is_due = self.is_ready = True
        self.takes_ns = 0.0

    def can_serve(self, committed: Sequence[int]) -> bool:
        return True

    def tokens_to_prefill(self, committed: Sequence[int]) -> int:
        return len(committed)

    def open(self, committed: Sequence[int], max_wait_s: float | None = None) -> None:
        self.is_requested = True

    async def propose(
        self,
        committed: Sequence[int],
        verdict: Verdict | None,
        budget: DraftBudget,
        offer: DraftTree,
    ) -> Draft:
        if not self.is_requested:
            self.open(committed)
            raise Unavailable("no session is open")
        CLOCK.advance(self.takes_ns)
        self.offers.append(offer)
        self.verdicts.append(verdict)
        if self.gone:
            raise Unavailable("gone")
        tree = DraftTree.chain([7] * self.length, MODEL, [self.estimate] * self.length)
        return Draft(
            tree=tree, committed_length=len(committed), timings=ServiceTimings(forwards=3),
            end=DraftEnd.DEPTH, proposed={MODEL: 9},
        )  # fmt: skip

    async def close(self) -> None: ...


def new_drafting(
    drafter: ScriptedDrafter | None,
    text: Sequence[int],
    *,
    draft_ns: float,
    fixed: bool = False,
    gains: Gains | None = None,
    prefill_ns: float = 0.0,
    left: int = 100,
    stop_token_ids: Collection[int] = (),
) -> tuple[FusedDrafting, Controller]:
    controller = Controller(max_nodes=16, verify_cost=LINE, fixed=fixed)
    choice: ModelChoice | None = None
    if drafter is not None:
        any_drafter: Any = drafter
        drafter.takes_ns = USUAL_FORWARDS * draft_ns
        gain = (gains or Gains()).of(FUSED, 0.0, draft_ns)
        costs = cost_line((CostPoint(1, round(prefill_ns)),) if prefill_ns else ())
        choice = ModelChoice(
            controller,
            gain,
            drafter=any_drafter,
            costs=costs,
            tokens_left=lambda held: len(text) + left - held,
        )
    phrases = PhraseSession(text, 64, stop_token_ids=stop_token_ids)
    drafting = FusedDrafting(phrases, choice, controller=controller, figures=SpeculationFigures())
    drafting.open(text)
    return drafting, controller


def outcome(committed: Sequence[int], new: int, draft: Draft, verdict: Verdict) -> RoundOutcome:
    return RoundOutcome(committed=committed, new_tokens=new, draft=draft.tree, verdict=verdict)


def play_rounds(
    drafting: FusedDrafting, controller: Controller, committed: Sequence[int], count: int,
    accepted: int = 0,
) -> list[Draft]:  # fmt: skip
    """Plays rounds in which `accepted` nodes of every draft are accepted."""

    async def play() -> list[Draft]:
        drafts = []
        for _ in range(count):
            draft = await drafting.propose(committed, controller.next_budget(50))
            kept = min(accepted, len(draft.tree))
            emitted = (*draft.tree.token_ids[:kept], 1)
            verdict = Verdict(tuple(range(kept)), emitted, emitted[0], (0,) * len(draft.tree))
            drafting.observe(outcome([*committed, *emitted], len(emitted), draft, verdict))
            drafts.append(draft)
        return drafts

    return asyncio.run(play())


COPIED = list(range(2, 14)) * 2 + [2, 3, 4]


def test_repetitive_text_is_drafted_without_the_model() -> None:
    drafting, controller = new_drafting(ScriptedDrafter(), COPIED, draft_ns=2e6)
    draft = play_rounds(drafting, controller, COPIED, 1)[0]
    assert not draft.timings.forwards or len(draft.tree)
    without_model, priced = new_drafting(None, COPIED, draft_ns=0.0)
    draft = play_rounds(without_model, priced, COPIED, 1)[0]
    assert draft.tree.token_ids[:3] == (5, 6, 7)
    assert set(draft.tree.sources) == {TokenSource.PROMPT_LOOKUP}


def test_draft_model_that_pays_is_asked_with_an_offer() -> None:
    drafter = ScriptedDrafter(length=8)
    drafting, controller = new_drafting(drafter, [1, 2, 3, 1, 2], draft_ns=1000.0)
    drafts = play_rounds(drafting, controller, [1, 2, 3, 1, 2], 5, accepted=8)
    model_drafts = [draft for draft in drafts if draft.timings.forwards]
    assert len(model_drafts) >= 4  # later, phrases know what comes
    assert any(len(offer) for offer in drafter.offers)
    assert model_drafts[0].proposed[MODEL] == 9 and model_drafts[0].end is DraftEnd.DEPTH


def test_draft_model_adds_less_the_more_phrases_promise() -> None:
    """However cheap it is. A draft not worth verifying is cut, so no more than its time is lost."""
    controller, gain = Controller(max_nodes=16, verify_cost=LINE), Gains().of(FUSED, 0.0, 1.0)
    offers = map(Offer, (0.0, 2.0, 8.0))
    added = [gain.worth(controller, offer) - controller.worth(offer) for offer in offers]
    assert added[0] > added[1] > added[2] == pytest.approx(-controller.draft_price(3.0, 3.0))


def test_phrases_extend_the_draft_of_the_model() -> None:
    text = [7, 7, 7, 7, 8, 9, 10, 11] * 4 + [1]
    drafting, controller = new_drafting(ScriptedDrafter(estimate=0.99), text, draft_ns=1000.0)
    draft = play_rounds(drafting, controller, text, 1)[0]
    assert draft.tree.token_ids[:6] == (7, 7, 7, 7, 8, 9)
    assert draft.tree.sources[:6] == (MODEL,) * 4 + (TokenSource.PROMPT_LOOKUP,) * 2
    assert draft.proposed[TokenSource.PROMPT_LOOKUP] >= 2


def test_phrases_extend_the_models_likeliest_end() -> None:
    tree = DraftTree(
        (1, 2, 3, 4, 5), (ROOT, ROOT, 0, 1, ROOT), (0.5, 0.4, 0.5, 0.9, 0.1),
        (MODEL, MODEL, MODEL, MODEL, TokenSource.PHRASE),
    )  # fmt: skip
    assert _likeliest_leaf(tree, tree.path_probabilities()) == 3
    assert _likeliest_leaf(tree, [1.0, 1.0, 0.9, 0.8, 0.95]) == 2
    assert _likeliest_leaf(EMPTY_TREE, []) is None


def test_phrases_extend_a_draft_only_to_the_maximum_depth() -> None:
    text = [7, 7, 7, 7, 8, 9, 10, 11] * 4 + [1]
    drafting, _ = new_drafting(ScriptedDrafter(estimate=0.99), text, draft_ns=1000.0, fixed=True)
    budget = DraftBudget(max_nodes=16, max_depth=5)
    draft = asyncio.run(drafting.propose(text, budget))
    assert draft.tree.token_ids[:5] == (7, 7, 7, 7, 8) and max(draft.tree.depths()) == 5


def test_phrases_do_not_extend_a_draft_that_ends_the_text() -> None:
    """Such phrases used to be verified in vain, and counted as proposed and expected."""
    text = [8, 7, 9, 10, 11] * 4 + [1]
    drafter = ScriptedDrafter(length=1, estimate=0.99)
    drafting, controller = new_drafting(
        drafter, text, draft_ns=1000.0, fixed=True, stop_token_ids={7}
    )
    draft = play_rounds(drafting, controller, text, 1)[0]
    assert draft.tree.token_ids == (7,) and not draft.proposed[TokenSource.PROMPT_LOOKUP]


def test_extension_by_phrases_respects_the_least_path_probability() -> None:
    text = [7, 7, 7, 7, 8, 9, 10, 11] * 4 + [1]
    drafting, _ = new_drafting(ScriptedDrafter(estimate=0.6), text, draft_ns=1000.0, fixed=True)
    budget = DraftBudget(max_nodes=16, max_depth=16, least_path_probability=0.1)
    draft = asyncio.run(drafting.propose(text, budget))
    assert len(draft.tree) >= 4 and min(draft.tree.path_probabilities()) >= 0.1


def test_draft_of_fixed_size_is_verified_at_any_cost() -> None:
    drafter = ScriptedDrafter(estimate=0.02)
    drafting, controller = new_drafting(drafter, [1], draft_ns=0.0, fixed=True)
    assert len(play_rounds(drafting, controller, [1], 1)[0].tree) == drafter.length


def test_nodes_are_selected_by_the_cost_to_all_waiting_sessions() -> None:
    drafting, _ = new_drafting(None, [1], draft_ns=0.0)
    cost = VerifyCost(LINE.curve)
    drafting._controller = Controller(max_nodes=16, verify_cost=cost)
    uncertain = DraftTree.chain([7], MODEL, [0.1])
    assert len(drafting._controller.select(uncertain).tree) == 1
    for _ in range(20):
        cost.load.observe(1, ServiceTimings(batch_size=8, batch_rows=8))
    assert len(drafting._controller.select(uncertain).tree) == 0


def test_draft_model_that_does_not_pay_is_asked_less_often() -> None:
    drafter = ScriptedDrafter(estimate=0.01)
    drafting, controller = new_drafting(drafter, [1], draft_ns=5e6)
    play_rounds(drafting, controller, [1], 100)
    assert 1 <= len(drafter.offers) <= 10


def test_drafter_receives_the_verdict_on_each_of_its_drafts() -> None:
    """The verdict on its last draft before rounds without it comes with the next request."""
    drafter = ScriptedDrafter(estimate=0.01)
    drafting, controller = new_drafting(drafter, [1], draft_ns=1e6)
    play_rounds(drafting, controller, [1], 1500)
    has_verdict = [verdict is not None for verdict in drafter.verdicts]
    assert len(has_verdict) > TRY_ROUNDS  # plain rounds lie between two tries
    assert has_verdict == [False, *[True] * (len(has_verdict) - 1)]


def test_next_request_knows_the_draft_models_gain() -> None:
    """A session with a model that has not paid opens only for a try."""
    gains = Gains()
    for _ in range(8):
        drafting, controller = new_drafting(
            ScriptedDrafter(estimate=0.01), [1], draft_ns=5e5, gains=gains
        )
        play_rounds(drafting, controller, [1], 20)
    drafter = ScriptedDrafter()
    drafting, controller = new_drafting(drafter, [1], draft_ns=5e5, gains=gains)
    assert not drafter.is_requested
    play_rounds(drafting, controller, [1], 200)
    assert drafter.is_requested and drafter.offers
    fresh = ScriptedDrafter()
    new_drafting(fresh, [1], draft_ns=1e3)
    assert fresh.is_requested


def test_paying_first_try_raises_the_next_expectation() -> None:
    gains = Gains()
    first = gains.of(FUSED, 0.0, 1.0)
    for _ in range(TRY_ROUNDS):
        first.observe(accepted=9, nodes=12, draft_ns=1, cost=LINE)
    assert gains.of(FUSED, 0.0, 1.0).means.tokens > 5
    for _ in range(200):
        first.observe(accepted=9, nodes=12, draft_ns=1, cost=LINE)
    gain = gains.of(FUSED, 0.0, 1.0)
    gain.observe(accepted=0, nodes=12, draft_ns=1, cost=LINE)
    assert gains.of(FUSED, 0.0, 1.0).means.tokens > 8.7 > gain.means.tokens  # one miss is one miss


def test_requests_share_tries_of_a_draft_model_that_does_not_pay() -> None:
    """Otherwise each request would try it in its first rounds, and short ones do little else."""
    gains = Gains()
    drafters = [ScriptedDrafter(estimate=0.01) for _ in range(20)]
    for drafter in drafters:
        drafting, controller = new_drafting(drafter, [1], draft_ns=5e5, gains=gains)
        play_rounds(drafting, controller, [1], 20)
    tries = [len(drafter.offers) for drafter in drafters]
    assert 1 <= sum(tries[5:]) <= 8


def test_session_must_gain_more_than_its_prefill_costs() -> None:
    """Over the remaining tokens: a long answer is worth it where a short one is not."""
    opened = []
    for left in (4, 400):
        drafter = ScriptedDrafter()
        drafting, controller = new_drafting(
            drafter, [1] * 100, draft_ns=1e3, prefill_ns=5e4, left=left
        )
        play_rounds(drafting, controller, [1] * 100, 2)
        opened.append(drafter.is_requested)
    assert opened == [False, True]


def test_sessions_of_a_draft_model_that_does_not_pay_are_rare() -> None:
    """Each try costs the prefill of a prompt."""
    gains = Gains()
    drafters = [ScriptedDrafter(estimate=0.01) for _ in range(100)]
    for drafter in drafters:
        drafting, controller = new_drafting(drafter, [1], draft_ns=5e6, gains=gains)
        play_rounds(drafting, controller, [1], 20)
    assert 1 <= sum(drafter.is_requested for drafter in drafters) <= 5


def test_free_sources_draft_when_the_drafter_is_unavailable() -> None:
    drafting, controller = new_drafting(
        ScriptedDrafter(gone=True), COPIED, draft_ns=0.0, fixed=True
    )
    draft = play_rounds(drafting, controller, COPIED, 1)[0]
    assert set(draft.tree.sources) == {TokenSource.PROMPT_LOOKUP}
    assert drafting._figures.fallback_rounds == 1


def test_end_with_zero_probability_is_not_extended() -> None:
    drafting, controller = new_drafting(
        ScriptedDrafter(estimate=0.0), COPIED, draft_ns=0.0, fixed=True
    )
    assert play_rounds(drafting, controller, COPIED, 1)[0].proposed[MODEL] == 9


def test_no_draft_without_known_phrases() -> None:
    drafting, controller = new_drafting(None, [1], draft_ns=0.0)
    draft = play_rounds(drafting, controller, [1], 1)[0]
    assert draft.tree == EMPTY_TREE and draft.end is DraftEnd.NONE


def test_no_draft_with_an_empty_budget() -> None:
    drafter = ScriptedDrafter()
    drafting, _ = new_drafting(drafter, COPIED, draft_ns=0.0)
    empty_budget = DraftBudget(max_nodes=0, max_depth=0)
    assert not len(asyncio.run(drafting.propose(COPIED, empty_budget)).tree)
    assert not drafter.offers


def test_free_sources_are_asked_every_round() -> None:
    """Text that starts to repeat is drafted from at once, however long nothing matched."""
    drafting, controller = new_drafting(None, [1], draft_ns=0.0)
    planned, drafted = [], []

    async def play() -> None:
        committed = [1]
        for token in [*range(2, 42), *range(2, 8)]:
            draft = await drafting.propose(committed, controller.next_budget(50))
            planned.append(draft.timings.service_ns > 0)
            drafted.append(len(draft.tree) > 0)
            verdict = Verdict((), (token,), token, (0,) * len(draft.tree))
            committed.append(token)
            drafting.observe(outcome(committed, 1, draft, verdict))

    asyncio.run(play())
    assert all(planned) and not any(drafted[:40])
    assert drafted[41]  # after the first token that occurred before


def test_patience_doubles_up_to_its_limit_and_resets_on_success() -> None:
    patience = Patience(4)
    tries = [number for number in range(20) if patience.should_try(False)]
    assert tries == [0, 3, 8, 13, 18]
    assert patience.should_try(True)
    assert patience.should_try(False)


def test_expensive_try_waits_longer_but_not_forever() -> None:
    """The first try is not priced."""
    for price, waited in ((30.0, 31), (1e9, 16 * 4 + 1)):
        patience = Patience(4)
        tries = [number for number in range(200) if patience.should_try(False, at_least=price)]
        assert tries == list(range(0, 200, waited))
