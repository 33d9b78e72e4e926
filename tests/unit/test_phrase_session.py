"""The phrases of one request: its first text is counted in pieces, and as if it were not."""

from __future__ import annotations

import random

from draftloop.phrase import Phrase
from draftloop.tree import DraftBudget
from phrase_store.index import PhraseIndex
from phrase_store.session import PhraseSession

AMPLE = DraftBudget(max_nodes=8, max_depth=8)


def test_a_first_text_is_counted_in_pieces_as_if_at_once() -> None:
    """A prompt of 128k tokens was counted before its request was admitted: everybody waited."""
    random.seed(4)
    text, prediction = random.choices(range(40), k=1300), random.choices(range(40), k=600)
    waiting = [PhraseSession(text, 16, prediction=prediction) for _ in range(3)]
    table = waiting[0]._own.table
    assert not table.words.any()
    seen = [int(table.state[0]) for _ in waiting[0].reading()]
    assert seen == [512, 600, 1112, 1624, 1900]  # the clock: a tick a token
    next(waiting[1].reading())
    whole = PhraseIndex(max_bytes=table.words.nbytes)
    whole.extend((), prediction)
    whole.extend((), text)
    for session in waiting:  # the last two count what is left for their first draft
        assert len(session.propose(text, AMPLE)) == 8
        assert (session._own.table.words == whole.table.words).all()


def test_what_comes_after_a_first_text_is_counted_behind_it() -> None:
    """Whoever comes before it has been counted counts the rest of it."""
    text = [1, 2, 3, 1, 2, 4] * 200
    sessions = [PhraseSession(text, 16) for _ in range(2)]
    assert len(list(sessions[0].reading())) == 3
    for session in sessions:
        session.extend(text, [1, 2])
        session.insert([Phrase((2,), (5,))])
    drafts = [session.propose([*text, 1, 2], AMPLE) for session in sessions]
    words = [session._own.table.words for session in sessions]
    assert all(draft == drafts[0] for draft in drafts)
    assert all((word == words[0]).all() for word in words)
