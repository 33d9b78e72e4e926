"""The cascade against its definition, written plainly and without a cache."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from drafter_service.config import DRAFT_TEMPERATURE
from drafter_service.session import DrafterSession, SessionRequest
from drafter_service.strategies.cascade import Cascade
from drafter_service.strategies.chain import Drafted
from draftloop.errors import InvalidInput
from draftloop.max_gram import MaxGram
from draftloop.request import SamplingParameters
from draftloop.runtime.sampling import Sampler
from draftloop.speculation import CascadeParameters, default_cascade
from draftloop.tree import DraftBudget, DraftEnd, DraftTree, TokenSource, Verdict
from tests.support.toy_model import ScriptedModel, TableModel, run

VOCABULARY = 5
STOP = 4
PROMPT = [0, 1, 2, 3, 0, 1, 2, 0, 1]
AMPLE = DraftBudget(max_nodes=20, max_depth=20)

Matrix = tuple[tuple[int, ...], ...]


def model_logits(seed: int, own_weight: float) -> Callable[[Sequence[int]], Tensor]:
    """The logits of a model: shared ones after two tokens, plus `own_weight` times its own."""
    shared, own_model = TableModel(VOCABULARY, seed=1, memory=2), TableModel(VOCABULARY, seed=seed)

    def logits(prefix: Sequence[int]) -> Tensor:
        row = shared.logits([0, *prefix[-2:]]) + own_weight * own_model.logits(prefix)
        row[STOP] -= 2.0
        return row

    return logits


@dataclass
class Setting:
    """A target and draft models that agree with it to different degrees."""

    models: int = 1
    seed: int = 0
    matrix: Matrix = ()
    leniency: float = 1.0
    temperature: float = 0.0
    repetition_penalty: float = 1.0
    stops: tuple[int, ...] = ()
    context_length: int = 128
    laws: list[Callable[[Sequence[int]], Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        self.laws = [model_logits(10 * self.seed + index, 0.3 * (1 + index)) for index in range(4)]
        self.sampling = SamplingParameters(
            temperature=self.temperature,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
        )
        self.sampler = Sampler(self.sampling, VOCABULARY, torch.device("cpu"))
        self.sampler.observe_prompt(PROMPT)

    def open(self, text: Sequence[int] = PROMPT) -> Cascade:
        """The strategy in a new session whose prompt has been run."""
        strategy = self.made(text)
        run(strategy.prefill())
        return strategy

    def made(self, text: Sequence[int]) -> Cascade:
        """The strategy in a new session."""
        models: list[Any] = [
            ScriptedModel(
                law,
                VOCABULARY,
                stop_token_ids=self.stops,
                context_length=self.context_length,
            )
            for law in self.laws[1 : 1 + self.models]
        ]
        parameters = CascadeParameters(matrix=self.matrix, leniency=self.leniency)
        parameters.validate("cascade")
        request = SessionRequest(
            session_id="",
            token_ids=tuple(text),
            prompt_length=len(PROMPT),
            sampling=self.sampling,
            strategy="cascade",
            stop_token_ids=frozenset(self.stops),
            cascade=parameters,
        )
        session: DrafterSession | None = None
        for model in reversed(models):
            slot = model.acquire()
            session = DrafterSession(model, slot, request, 4, smaller=session)
        assert session is not None
        return Cascade(session)

    def scores(self, model: int, text: Sequence[int]) -> Tensor:
        """[vocabulary]: what the target (0) or a draft model maximises after the text."""
        path = text[len(PROMPT) :]
        self.sampler.scale_temperature(DRAFT_TEMPERATURE if model else 1)
        return self.sampler.scores(self.laws[model](text)[None], [len(text)], [path])[0]

    def row(self, text: list[int], row: int, limit: int, committed: int) -> list[int]:
        """What the drafters of a matrix row write after the text: the paper's algorithm 1."""
        matrix, written, total = self.matrix or default_cascade(self.models), list[int](), 0
        for drafter, count in enumerate(matrix[row]):
            total += count
            while count and len(written) < min(total, limit) and not self.ended(written):
                prefix = text + written
                if drafter == self.models:
                    remaining = min(total, limit) - len(written)
                    source = MaxGram(prefix[:committed], self.stops)
                    written += [token for token, _ in source.propose(prefix[committed:], remaining)]
                    break
                proposal_limit = limit - len(written) - 1
                proposal = self.row(prefix, drafter + 1, proposal_limit, committed)
                written += self.reviewed(drafter + 1, prefix, proposal, self.leniency)
        return written

    def ended(self, written: Sequence[int]) -> bool:
        """Whether a stop token was written last."""
        return bool(written) and written[-1] in self.stops

    def reviewed(
        self, model: int, text: list[int], proposal: Sequence[int], leniency: float
    ) -> list[int]:
        """The part of the proposal that the model accepts, and the model's own next token."""
        kept: list[int] = []
        for token in [*proposal, None]:
            scores = self.scores(model, text + kept)
            best = int(scores.argmax())
            lenient = token is not None and leniency > 1
            if lenient and scores[token] >= scores[best] - math.log(leniency):
                best = int(token or 0)
            kept.append(best)
            if best != token or best in self.stops:
                break
        return kept


def verdict_on(setting: Setting, text: list[int], draft: DraftTree) -> Verdict:
    emitted = setting.reviewed(0, text, draft.token_ids, 1.0)
    accepted = tuple(
        node
        for node, (drafted, emitted_token) in enumerate(zip(draft.token_ids, emitted, strict=False))
        if drafted == emitted_token
    )
    return Verdict(accepted, tuple(emitted), emitted[0], (0,) * len(draft), setting.ended(emitted))


@dataclass
class Generation:
    """Rounds of drafting and verification in one session."""

    setting: Setting
    strategy: Cascade
    text: list[int] = field(default_factory=lambda: [*PROMPT])

    def round(self, budget: DraftBudget = AMPLE) -> DraftTree:
        draft = run(self.strategy.propose(budget))
        verdict = verdict_on(self.setting, self.text, draft)
        self.text += verdict.emitted_token_ids
        self.strategy.session.commit(verdict.emitted_token_ids, len(self.text))
        self.strategy.observe(verdict.emitted_token_ids, verdict)
        return draft


@st.composite
def matrices(draw: st.DrawFn, models: int) -> Matrix:
    rows = []
    for row in range(models + 1):
        counts = draw(st.lists(st.integers(0, 4), min_size=models + 1, max_size=models + 1))
        rows.append(
            (0,) * row + tuple(counts[row:-1]) + (counts[-1] or int(not any(counts[row:])),)
        )
    return tuple(rows)


@pytest.mark.parametrize("models", [1, 2, 3])
@settings(max_examples=12, deadline=None)
@given(st.data())
def test_every_draft_matches_the_definition(models: int, data: st.DataObject) -> None:
    """Over several rounds of one session, cached state gives the drafts of a fresh computation.

    The definition caches nothing; the scripted models read their prefixes from the caches.
    """
    setting = Setting(
        models=models,
        seed=data.draw(st.integers(0, 1000)),
        matrix=data.draw(st.just(()) | matrices(models)),
        leniency=data.draw(st.sampled_from([1.0, 1.5, 4.0])),
        temperature=data.draw(st.sampled_from([0.0, 0.8])),
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.3])),
        stops=data.draw(st.sampled_from([(), (STOP,)])),
    )
    generation = Generation(setting, setting.open())
    for _ in range(5):
        nodes, start = data.draw(st.integers(1, 20)), list(generation.text)
        draft = generation.round(DraftBudget(max_nodes=nodes, max_depth=20))
        expected = setting.row(start, 0, nodes, len(start))
        assert list(draft.token_ids) == expected
        assert draft.parents == tuple(range(-1, len(draft) - 1))
        assert not set(draft.token_ids[:-1]) & set(setting.stops)
        fresh = setting.open(start)
        assert run(fresh.propose(DraftBudget(max_nodes=nodes, max_depth=20))).token_ids == tuple(
            expected
        )
        if setting.ended(generation.text):
            break


def common_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(first), len(second)))


@pytest.mark.parametrize("models", [1, 2, 3])
def test_forwards_do_not_recompute_cached_rows(models: int) -> None:
    setting = Setting(models=models, seed=3, temperature=0.5)
    generation = Generation(setting, setting.open())
    for _ in range(12):
        generation.round()
    for session in generation.strategy.session.levels():
        read = session.model.read  # type: ignore[attr-defined]
        assert len(read) > 12
        previous: list[int] = []
        for text, rows, wanted in read:
            guesses = max(0, wanted - 1)
            assert rows <= len(text) - common_prefix_length(previous, text) + 1 + guesses
            previous = text


def test_single_model_runs_only_its_last_token_and_the_guesses() -> None:
    setting = Setting(seed=5, matrix=((4, 0), (0, 5)))
    generation = Generation(setting, setting.open())
    for _ in range(10):
        generation.round()
    read = generation.strategy.session.model.read  # type: ignore[attr-defined]
    in_rounds = [(rows, wanted) for _, rows, wanted in read if wanted][1:]
    # One row is the last token; at a round's start also the model's own last token, if accepted.
    assert len(in_rounds) > 10 and all(rows - (wanted - 1) <= 2 for rows, wanted in in_rounds)
    run(generation.strategy.propose(replace(AMPLE, least_path_probability=0.99)))
    assert read[-1][2] == 6  # what is only reviewed need not be worth its verification


def test_leniency_accepts_more_from_cheaper_drafters() -> None:
    def forwards(leniency: float) -> int:
        strategy = Setting(seed=2, matrix=((8, 0), (0, 6)), leniency=leniency).open()
        run(strategy.propose(AMPLE))
        wanted = [wanted for _, _, wanted in strategy.session.model.read]  # type: ignore[attr-defined]
        return len([count for count in wanted if count])

    assert forwards(1.0) > forwards(64.0) >= 2


def test_max_gram_reads_in_pieces_during_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the whole prompt when a session was made used to block the event loop.

    Later it was read after the prefill's forwards: for a prompt in the prefix cache all at once, on
    the engine's thread, which blocked the rounds of all sessions.
    """
    read: list[int] = []

    class Noted(MaxGram):
        def extend(self, token_ids: Sequence[int]) -> None:
            read.append(len(token_ids))
            super().extend(token_ids)

    monkeypatch.setattr("drafter_service.strategies.cascade.MaxGram", Noted)
    strategy = Setting().made([*PROMPT, *PROMPT])
    monkeypatch.setattr("drafter_service.strategies.cascade.PIECE_TOKENS", 4)
    run(strategy.prefill())
    assert sum(read) == 0
    steps = [sum(read) for _ in strategy.index_steps()]
    assert steps == [4, 8, 12, 16, 18]
    strategy.session.commit([1, 2], 20)
    strategy.observe([1, 2], None)
    assert sum(read) == 18
    run(strategy.propose(AMPLE))
    assert sum(read) == 20


def test_sources_name_the_drafter_of_each_node() -> None:
    strategy = Setting(matrix=((2, 9), (0, 1))).open()
    draft = run(strategy.propose(AMPLE))
    model = draft.sources.count(TokenSource.DRAFT_MODEL)
    assert draft.sources[:2] == (TokenSource.DRAFT_MODEL,) * 2 and model <= 3
    assert set(draft.sources[model:]) == {TokenSource.PROMPT_LOOKUP}
    assert strategy.proposed_nodes == model
    assert all(0 < estimate < 1 for estimate in draft.estimates)


def test_each_model_has_its_own_calibration() -> None:
    setting = Setting(models=2, matrix=((1, 3, 0), (0, 1, 2), (0, 0, 1)))
    generation = Generation(setting, setting.open())
    for _ in range(20):
        generation.round()
    calibrations = [level.calibration for level in generation.strategy._levels]
    assert calibrations[0] != calibrations[1] and all(sum(one.trials) for one in calibrations)


def test_invalid_matrix_names_the_field() -> None:
    with pytest.raises(InvalidInput, match=r"cascade\.matrix: must have 3 rows of 3 entries.*\[\["):
        Setting(models=2, matrix=((1, 1), (0, 1))).open()


@pytest.mark.parametrize("models", [1, 2, 3, 4])
def test_default_matrix_is_valid(models: int) -> None:
    CascadeParameters(matrix=default_cascade(models)).validate("cascade")
    assert default_cascade(1) == ((3, 4), (0, 6))
    assert default_cascade(2) == ((3, 2, 4), (0, 1, 6), (0, 0, 6))


def test_forward_that_does_not_pay_is_not_run() -> None:
    strategy = Setting(models=2, matrix=((6, 0, 0), (0, 3, 3), (0, 0, 3))).open()
    for level in strategy._levels:
        for _ in range(40):  # one late forward is not believed
            level.economy.observe(1.0, 0.5)
    draft = run(strategy.propose(DraftBudget(max_nodes=20, max_depth=20, tokens_per_second=100.0)))
    reads = [level.model.read for level in strategy._levels]  # type: ignore[attr-defined]
    # The caller decided on the first forward; the smaller model's reviews did not pay.
    assert [len([1 for _, _, wanted in read if wanted]) for read in reads] == [1, 0]
    assert len(draft) < 6 and strategy.end == DraftEnd.DRAFT_COST


def test_reason_for_the_end_of_a_draft_is_reported() -> None:
    def end(
        matrix: Matrix = ((2, 2), (0, 2)), stop: tuple[int, ...] = (), **limits: Any
    ) -> DraftEnd:
        strategy = Setting(matrix=matrix, stops=stop).open()
        run(strategy.propose(DraftBudget(**{"max_nodes": 20, "max_depth": 20, **limits})))
        return strategy.end

    assert end(max_nodes=1) is DraftEnd.NODES
    assert end(max_depth=1) is DraftEnd.DEPTH
    assert end() is DraftEnd.NODES  # as many as the matrix allows
    assert end(stop=tuple(range(VOCABULARY))) is DraftEnd.TEXT
    assert end(((1, 9), (0, 1)), least_path_probability=0.999) is DraftEnd.VERIFY_COST


def test_drafts_stay_within_the_context() -> None:
    """The scripted models fail if they are to read beyond their context."""
    full = Setting(models=2).row([*PROMPT], 0, 20, len(PROMPT))
    for room in range(len(full) + 2):
        strategy = Setting(models=2, context_length=len(PROMPT) + room).open()
        assert list(run(strategy.propose(AMPLE)).token_ids) == full[:room] or room < len(full)
        assert len(strategy._last_draft) <= room
        assert strategy.end is DraftEnd.DEPTH or room > len(full)


class CoinModel:
    """A model whose greedy token is 0 with probability `rate`, else 1."""

    def __init__(self, rate: float) -> None:
        self._random = random.Random(7)
        self._rate = rate

    def __call__(self, prefix: Sequence[int]) -> Tensor:
        heads = self._random.random() < self._rate
        return torch.tensor([float(heads), float(not heads)])


@pytest.mark.parametrize(
    ("alpha", "a", "n", "k"), [(0.8, 0.6, 1, 5), (0.8, 0.6, 2, 4), (0.9, 0.5, 3, 3)]
)
def test_expected_tokens_match_the_papers_formula(
    alpha: float, a: float, n: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(1 - alpha phi(alpha)^n) / ((1 - alpha) (1 + n c1 + n k c2)): n reviews of k tokens."""
    setting = Setting(matrix=((1, 0), (0, k)))
    setting.laws[1] = CoinModel(a)
    strategy = setting.open()
    monkeypatch.setattr(strategy._max_gram, "propose", lambda tail, count: [(0, 0.5)] * count)
    c1, c2, tokens, cost = 0.1, 0.001, [], []
    model: Any = strategy.session.model
    for _ in range(1000):
        run(strategy.prefill())
        model.read.clear()
        draft = Drafted()
        for _ in range(n):
            run(strategy._row(0, draft, 20, AMPLE))
        # The target accepts each token with probability alpha: the expectation, not a sample.
        tokens.append((1 - alpha ** (len(draft) + 1)) / (1 - alpha))
        copied = sum(wanted - 1 for _, _, wanted in model.read)
        cost.append(1 + c1 * len(model.read) + c2 * copied)
    phi = 1 + (alpha - 1) * (1 - (a * alpha) ** (k + 1)) / (1 - a * alpha)
    ewif = (1 - alpha * phi**n) / ((1 - alpha) * (1 + n * c1 + n * k * c2))
    assert np.mean(tokens) / np.mean(cost) == pytest.approx(ewif, rel=0.015)
