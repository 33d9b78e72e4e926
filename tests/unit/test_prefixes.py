"""Common prefixes are computed once, and outputs stay the same."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftloop.request import SamplingParameters
from draftloop.runtime import cpu_linear
from draftloop.runtime.engine import Engine
from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.kv_cache import CacheShape, KVCache, Slot
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.prefill import prefill
from draftloop.runtime.prefixes import (
    MIN_SHARED_TOKENS,
    Text,
    acquire,
    computes_for,
    copy_shared_prefix,
)
from draftloop.tree import EMPTY_TREE
from tests.support.toy_model import load_model, save_model
from verifier_service.round import verify
from verifier_service.session import SessionRequest, VerifierSession

T = TypeVar("T")

CHUNK = 20
CHAT = [1 + 7 * place % 90 for place in range(60)]
OTHER = [1 + 11 * place % 90 for place in range(60)]


def same_logits(actual: Tensor, expected: Tensor) -> bool:
    """Equality bit for bit, if a row does not depend on what is computed beside it."""
    if cpu_linear.UNIT is None:
        return torch.allclose(actual, expected, atol=1e-5)
    return torch.equal(actual, expected)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return load_model(save_model(Path(tmp_path_factory.mktemp("model"))), max_sessions=3)


@pytest.fixture(autouse=True)
def emptied_slots(model: LanguageModel) -> None:
    """Removes the texts of other tests from the slots."""
    slots = [model.acquire() for _ in range(model.cache.free_slots)]
    for slot in slots:
        model.cache.release(slot)


def logits_task(model: LanguageModel, slot: Slot, text: Sequence[int]) -> Task[Tensor]:
    """The logits after a text, computed as a service does."""
    yield from prefill(model, slot, text, chunk_tokens=CHUNK)
    tail = text[slot.length :]
    return (yield Forward(model, slot, tail, logits_from=len(tail) - 1))


def run(task: Task[Tensor]) -> tuple[Tensor, int]:
    """The result of a task, and how many tokens it computed."""
    computed, logits = 0, None
    while True:
        try:
            request = next(task) if logits is None else task.send(logits)
        except StopIteration as finished:
            return finished.value, computed
        assert isinstance(request, Forward)
        (logits,) = request.model.forward([request])
        computed += request.rows


def open_slot(model: LanguageModel, text: list[int], group: str | None = "") -> Slot:
    slot = model.acquire(None if group is None else Text(text, group))
    slot.follow(text)
    return slot


def compute(model: LanguageModel, text: list[int], group: str | None = "") -> tuple[Tensor, int]:
    """The logits after a text, and the tokens computed for them, in a session of its own."""
    slot = open_slot(model, text, group)
    try:
        return run(logits_task(model, slot, text))
    finally:
        model.cache.release(slot)


def test_next_turn_of_a_chat_continues_in_its_slot(model: LanguageModel) -> None:
    first = open_slot(model, CHAT[:40])
    run(logits_task(model, first, CHAT[:40]))
    model.cache.release(first)
    compute(model, OTHER)  # takes an empty slot, another one
    expected, all_rows = compute(model, CHAT, None)
    assert all_rows == len(CHAT)
    second = open_slot(model, CHAT)
    assert second.index == first.index and second.length == second.shared == 40
    logits, computed = run(logits_task(model, second, CHAT))
    model.cache.release(second)
    assert computed == len(CHAT) - 40 and same_logits(logits, expected)


def test_prefix_of_a_running_session_is_copied(model: LanguageModel) -> None:
    first = open_slot(model, CHAT)
    run(logits_task(model, first, CHAT))
    text = CHAT[:30] + OTHER[:10]
    logits, computed = compute(model, text)
    assert computed == 10 and same_logits(logits, compute(model, text, None)[0])
    assert same_logits(
        run(logits_task(model, first, [*CHAT, 3]))[0], compute(model, [*CHAT, 3], None)[0]
    )
    model.cache.release(first)


def test_request_with_a_short_common_prefix_leaves_the_text_in_place(model: LanguageModel) -> None:
    """A request that shares less than half of a text leaves that text as it was."""
    compute(model, CHAT)
    for start in range(2):  # as many slots as are left
        assert compute(model, CHAT[:20] + OTHER[start : start + 30])[1] == 30
    assert compute(model, [*CHAT, 5])[1] == 1


@pytest.mark.parametrize("groups", [("", "another"), ("", None), (None, ""), (None, None)])
def test_groups_do_not_share_prefixes(
    model: LanguageModel, groups: tuple[str | None, str | None]
) -> None:
    compute(model, CHAT, groups[0])
    assert compute(model, [*CHAT, 5], groups[1])[1] == len(CHAT) + 1


def test_read_only_session_shares_no_rows(model: LanguageModel) -> None:
    # A read-only text copies from others, but nothing is copied from it.
    compute(model, CHAT)
    compute(model, OTHER)
    text = [*CHAT, *OTHER[:MIN_SHARED_TOKENS]]
    reader = model.acquire(Text(text, "", read_only=True))
    assert run(logits_task(model, reader, text))[1] == MIN_SHARED_TOKENS
    longer = open_slot(model, text + OTHER)
    assert not computes_for(reader, longer)
    assert run(logits_task(model, longer, text + OTHER))[1] == MIN_SHARED_TOKENS + len(OTHER)
    for slot in (reader, longer):
        model.cache.release(slot)
    assert reader not in model.cache.kept_slots()


def test_cached_text_is_computed_only_for_its_last_token(model: LanguageModel) -> None:
    # Only the last token is computed again, because its logits are needed.
    expected = compute(model, CHAT)[0]
    again, computed = compute(model, CHAT)
    assert computed == 1 and same_logits(again, expected)


def raise_out_of_memory(*_: object) -> NoReturn:
    raise RuntimeError("out of memory")


@pytest.mark.parametrize(
    ("failing_name", "alone", "first"),
    [
        ("draftloop.runtime.model.LanguageModel.run_batch", False, 91),
        ("draftloop.runtime.layout.run", False, 92),
        ("draftloop.runtime.layout.run_and_choose", True, 93),
    ],
    ids=["laid out", "prepared", "in one call"],
)
def test_rows_of_a_failed_forward_are_not_shared(
    model: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    failing_name: str,
    alone: bool,
    first: int,
) -> None:
    """A slot counts rows before they are computed; sharing those would corrupt the output."""
    if "layout" not in failing_name:
        monkeypatch.setattr(model, "prepared", None)
    elif model.prepared is None:
        pytest.skip("no compiled forwards on this processor")
    text = [first, *CHAT[:30]]  # no slot has held its rows yet
    request = SessionRequest(
        session_id="", token_ids=tuple(text), prompt_length=len(text), prefix_group="",
        sampling=SamplingParameters(),
    )  # fmt: skip
    slot = model.acquire(request.text())
    session = VerifierSession(model, slot, request, is_alone=lambda: alone)
    with monkeypatch.context() as broken, pytest.raises(RuntimeError, match="out of memory"):
        broken.setattr(failing_name, raise_out_of_memory)
        run_together([verify(session, EMPTY_TREE, chunk_tokens=len(text))])
    assert (slot.length, slot.pending) == (0, 0)
    model.cache.release(slot)
    logits, computed = compute(model, [*text, 5])
    assert computed == len(text) + 1 and same_logits(logits, compute(model, [*text, 5], None)[0])


def test_short_prefix_is_computed_rather_than_copied(model: LanguageModel) -> None:
    # Fewer than MIN_SHARED_TOKENS tokens are computed, not copied.
    compute(model, CHAT)
    assert compute(model, CHAT[: MIN_SHARED_TOKENS - 1] + OTHER)[1] == MIN_SHARED_TOKENS - 1 + len(
        OTHER
    )


def recorded_forward_rows(model: LanguageModel, patch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of every forward pass from now on."""
    sizes: list[int] = []
    forward = model.forward

    def counting(requests: Sequence[Forward]) -> list[Tensor]:
        sizes.append(sum(request.rows for request in requests))
        return forward(requests)

    patch.setattr(model, "forward", counting)
    return sizes


def run_together(tasks: Sequence[Task[T]]) -> list[T]:
    """The results of tasks that all wait before the engine's first forward pass."""
    engine, submitted = Engine(), threading.Event()
    try:
        engine.call(submitted.wait)
        futures = [engine.submit(task) for task in tasks]
        submitted.set()
        return [task.result() for task in futures]
    finally:
        engine.stop()


def test_burst_computes_its_common_prefix_once(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting prompts copy rows that others have computed; no rows are computed twice."""
    texts = [CHAT[:48] + [3, 4 + index] for index in range(3)]
    expected = [compute(model, text, None)[0] for text in texts]
    slots = [open_slot(model, text, "burst") for text in texts]
    sizes = recorded_forward_rows(model, monkeypatch)
    pairs = zip(slots, texts, strict=True)
    answers = run_together([logits_task(model, slot, text) for slot, text in pairs])
    for slot in slots:
        model.cache.release(slot)
    assert all(map(same_logits, answers, expected))
    assert sum(sizes) <= len(texts[0]) + 2 * CHUNK  # not three times as many


@pytest.mark.parametrize("chunk", [CHUNK, 256])
def test_choices_of_one_prompt_compute_it_once(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Even if the prompt is run with the first verification."""
    sizes = recorded_forward_rows(model, monkeypatch)
    requests = [
        SessionRequest(
            session_id="", token_ids=tuple(CHAT), prompt_length=len(CHAT), prefix_group="",
            sampling=SamplingParameters(temperature=1.0, seed=seed),
        )
        for seed in range(3)
    ]  # fmt: skip
    sessions = [VerifierSession(model, model.acquire(one.text()), one) for one in requests]
    verdicts = run_together([verify(one, EMPTY_TREE, chunk_tokens=chunk) for one in sessions])
    for one in sessions:
        model.cache.release(one.slot)
    assert sum(sizes) <= len(CHAT) + 2 * (1 + CHUNK)
    logits = compute(model, CHAT, None)[0]
    alone = [request.sampler(model).choose(logits, [len(CHAT)], [[]]) for request in requests]
    assert [verdict.emitted_token_ids for verdict in verdicts] == list(map(tuple, alone))


def test_memory_touched_for_kept_texts_is_bounded() -> None:
    """On a CPU, a slot takes memory once it is written to, and never returns it."""
    shape = CacheShape(layers=1, slots=8, kv_heads=1, rows=64, head_dim=2)
    for limit, expected in ((None, 8), (60, 3), (1, 1)):
        cache = KVCache(shape, dtype=torch.float32, device=torch.device("cpu"), touched_rows=limit)
        used = set()
        for number in range(20):
            slot = acquire(cache, 4, Text([number + 1, *CHAT], ""))
            slot.length = 25
            used.add(slot.index)
            cache.release(slot)
        assert len(used) == expected
    slots = [acquire(cache, 4, Text(CHAT, "")) for _ in range(8)]
    assert len({slot.index for slot in slots}) == 8  # a session that needs a slot gets one


def test_sessions_without_a_text_take_no_kept_text() -> None:
    """Each private request used to take the place of another user's text."""
    shape = CacheShape(layers=1, slots=4, kv_heads=1, rows=64, head_dim=2)
    cache = KVCache(shape, dtype=torch.float32, device=torch.device("cpu"))

    def serve(text: Text | None) -> int:
        slot = cache.acquire(4) if text is None else acquire(cache, 4, text)
        slot.length = 25
        cache.release(slot)
        return slot.index

    kept = {serve(Text([number, *CHAT], "")) for number in range(3)}
    private = {serve(None) for _ in range(6)}
    assert len(kept) == 3 and len(private) == 1 and not kept & private
    assert {slot.index for slot in cache.kept_slots()} == kept
    assert serve(Text([9, *CHAT], "")) in private


def test_only_copied_rows_count_as_shared() -> None:
    shape = CacheShape(layers=1, slots=2, kv_heads=1, rows=64, head_dim=2)
    cache = KVCache(shape, dtype=torch.float32, device=torch.device("cpu"))
    one, other = (acquire(cache, 4, Text(CHAT, "")) for _ in range(2))
    one.length, other.length = 50, 5
    copy_shared_prefix(other, 40)
    assert (other.length, other.shared) == (40, 35)


def test_no_session_waits_for_a_read_only_session() -> None:
    # No session waits for a read-only one to compute their common prefix.
    shape = CacheShape(layers=1, slots=2, kv_heads=1, rows=64, head_dim=2)
    cache = KVCache(shape, dtype=torch.float32, device=torch.device("cpu"))
    reader = acquire(cache, 4, Text(CHAT, "", read_only=True))
    shared = acquire(cache, 4, Text(CHAT, ""))
    assert computes_for(shared, reader) and not computes_for(reader, shared)


def test_computes_for_holds_for_sessions_with_a_missing_common_prefix(model: LanguageModel) -> None:
    slots = [open_slot(model, text) for text in (CHAT, [*CHAT[:40], 5], OTHER)]
    assert computes_for(slots[0], slots[1]) and computes_for(slots[1], slots[0])
    assert not computes_for(slots[0], slots[2])
    run(logits_task(model, slots[0], CHAT))
    assert not computes_for(slots[0], slots[1])  # it is already there, to be copied
    copy_shared_prefix(slots[1], 30)
    assert slots[1].length == 30
    for slot in slots:
        model.cache.release(slot)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_logits_do_not_depend_on_shared_prefixes(model: LanguageModel, data: st.DataObject) -> None:
    running: list[Slot] = []
    try:
        for _ in range(data.draw(st.integers(2, 6))):
            beginning = data.draw(st.sampled_from([CHAT, OTHER]))[: data.draw(st.integers(1, 60))]
            text = beginning + data.draw(st.lists(st.integers(1, 90), max_size=20))
            running.append(
                open_slot(model, text, data.draw(st.sampled_from(["", "another", None])))
            )
            logits, _ = run(logits_task(model, running[-1], text))
            assert same_logits(logits, compute(model, text, None)[0])
            if len(running) == 2 or data.draw(st.booleans()):
                model.cache.release(running.pop(data.draw(st.integers(0, len(running) - 1))))
    finally:
        for slot in running:
            model.cache.release(slot)
