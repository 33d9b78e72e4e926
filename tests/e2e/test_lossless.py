"""Ladder L1: strategy, batching, misses, crashes and lost sessions change only the speed."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from draftloop.config import bundled_model
from draftloop.runtime.cpu_linear import UNIT
from draftloop.speculation import DRAFTER_STRATEGIES
from orchestrator.stack_config import StackConfig
from protos import generation_pb2 as pb
from tests.e2e.client import (
    STRATEGIES,
    Case,
    Client,
    assert_drafted_alike,
    first_difference,
    held_out_prompts,
)
from tests.e2e.conftest import SAMPLINGS, UNFILTERED
from tests.e2e.streams import Streams
from tests.support.forked import ForkedStack

# Enough for every part of every strategy to take part.
DRAFT_TOKENS = 12
PROMPTS, TOKENS = 50, 128
TOGETHER = 8
TRIES = 3  # a busy machine may spoil one or two runs, as a single request has few rounds


@pytest.fixture(scope="module")
def plain_cases() -> list[Case]:
    return [Case(prompt, TOKENS) for prompt in held_out_prompts(PROMPTS, longest=160)]


@pytest.fixture(scope="module")
def many_cases(plain_cases: list[Case]) -> list[Case]:
    """The same prompts at the temperatures of UNFILTERED in turn, each with its own seed."""
    return [
        replace(case, sampling={**UNFILTERED[index % len(UNFILTERED)], "seed": 3000 + index})
        for index, case in enumerate(plain_cases)
    ]


@pytest.fixture(scope="module")
def plain_outputs(client: Client, many_cases: list[Case]) -> list[list[int]]:
    """The output of plain decoding, one request at a time."""
    outputs = client.tokens(many_cases, "autoregressive")
    assert len(outputs) == PROMPTS and sum(map(len, outputs)) > PROMPTS * TOKENS / 2
    return outputs


@pytest.fixture(scope="module")
def reference(plain_cases: list[Case]) -> Iterator[list[list[int]]]:
    """transformers' greedy continuation; prompts of equal length share an unpadded batch."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = bundled_model("verifier")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    end = model.generation_config.eos_token_id
    outputs = {}
    for length in {len(case.prompt) for case in plain_cases}:
        prompts = [case.prompt for case in plain_cases if len(case.prompt) == length]
        batch = torch.tensor(prompts)
        generated = model.generate(
            batch, attention_mask=torch.ones_like(batch), do_sample=False, max_new_tokens=TOKENS
        )
        for prompt, output in zip(prompts, generated[:, length:].tolist(), strict=True):
            outputs[prompt] = output[: output.index(end) + 1] if end in output else output
    yield [outputs[case.prompt] for case in plain_cases]
    torch.set_num_threads(threads)


@pytest.mark.timeout(600)
def test_greedy_equals_transformers(
    client: Client, plain_cases: list[Case], reference: list[list[int]]
) -> None:
    """Guards the whole numerical path: cache, masks, positions, stop rule."""
    assert len(plain_cases) == PROMPTS
    outputs = client.tokens(plain_cases, "autoregressive", concurrency=8)
    assert not first_difference(reference, outputs)


@pytest.mark.timeout(600)
# One at a time: each sampling setting once. In shared forward passes: twelve cases.
@pytest.mark.parametrize(("concurrency", "count"), [(1, len(SAMPLINGS)), (8, 12)])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_equals_plain_decoding(
    client: Client,
    cases: list[Case],
    expected: list[list[int]],
    strategy: str,
    concurrency: int,
    count: int,
) -> None:
    """Greedy and sampled, with filters, penalties and bias; alone and in shared forward passes.

    Drafts are forced in every round: without drafts, equality shows nothing, and on a model this
    cheap a busy machine may measure that none pay. `test_phrases` covers drafts where they pay, in
    its run with cold phrases.
    """
    assert any(len(tokens) > 10 for tokens in expected[:count])
    drafts = strategy != "autoregressive"
    size = DRAFT_TOKENS if drafts else None
    for _ in range(TRIES):
        answers = client.answers(cases[:count], strategy, concurrency, max_draft_tokens=size)
        outputs = [list(answer.token_ids) for answer in answers]
        assert not first_difference(expected[:count], outputs)
        figures = [answer.summary.speculation for answer in answers]
        assert (sum(each.draft_tokens for each in figures) > 0) == drafts
        stalled = 10 * sum(each.fallback_rounds for each in figures)
        if stalled <= sum(each.rounds for each in figures):  # at most one in ten
            return
    pytest.fail("the drafter was late every time")


@pytest.mark.lossless
@pytest.mark.parametrize("concurrency", [1, 16])
@pytest.mark.parametrize("strategy", STRATEGIES[1:])
def test_fifty_prompts_equal_plain_decoding(
    client: Client,
    many_cases: list[Case],
    plain_outputs: list[list[int]],
    strategy: str,
    concurrency: int,
) -> None:
    """The whole rung of the ladder: fifty prompts, 128 tokens each, each with its own seed.

    Runs only with TEST_LOSSLESS set: it takes ten minutes on two shared cores.
    """
    answers = client.answers(many_cases, strategy, concurrency, max_draft_tokens=DRAFT_TOKENS)
    outputs = [list(answer.token_ids) for answer in answers]
    assert not first_difference(plain_outputs, outputs)
    assert sum(answer.summary.speculation.draft_tokens for answer in answers)


drafted_alike = partial(assert_drafted_alike, draft_tokens=DRAFT_TOKENS)


@pytest.mark.timeout(600)
def test_larger_draft_model_and_three_stage_cascade_equal_plain_decoding(
    cases: list[Case], expected: list[list[int]]
) -> None:
    """Both bundled draft models in one drafter that drafts ahead; the larger model comes first."""
    count = len(SAMPLINGS)
    config = StackConfig(
        port=0, http_port=None, drafter_port=0, verifier_port=0, dtype="float32",
        draft=bundled_model("drafter-large"),
        drafter_flags=("--smaller-models", str(bundled_model("drafter")), "--draft-ahead", "on"),
        start_timeout_s=240,
    )  # fmt: skip
    with ForkedStack(config) as running:
        client = Client(running.address)
        for strategy, concurrency in (("cascade", 2), ("fused", 2), ("fused", 1)):
            drafted_alike(client, cases[:count], expected[:count], strategy, concurrency)
        client.channel.close()


@pytest.mark.timeout(600)
@pytest.mark.skipif(
    UNIT is None, reason="rounding depends on the batch: no kernel for this machine"
)
def test_bfloat16_equals_plain_decoding(cases: list[Case]) -> None:
    """The default format, with frequent near ties: alone and in shared forward passes."""
    config = StackConfig(
        port=0, http_port=None, drafter_port=0, verifier_port=0, start_timeout_s=240
    )
    cases = cases[:TOGETHER]
    with ForkedStack(config) as running:
        client = Client(running.address)
        assert client.stub.Info(pb.GenerationInfoRequest()).verifier.dtype == "bfloat16"
        plain = client.tokens(cases, "autoregressive")
        assert sum(map(len, plain)) > 20 * len(plain)
        assert client.tokens(cases, "autoregressive", TOGETHER) == plain
        for strategy in ("fused", "opt_tree", "lookahead"):
            for concurrency in (1, TOGETHER):
                drafted_alike(client, cases, plain, strategy, concurrency)
        client.channel.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("target", "draft"), [("int8", "w8a8"), ("w8a8", "int8"), ("w4a8", "w4a8")]
)
def test_quantized_weights_equal_plain_decoding(cases: list[Case], target: Any, draft: str) -> None:
    """Quantized target and draft models, in bfloat16: drafts do not change the target's output."""
    config = StackConfig(
        port=0, http_port=None, drafter_port=0, verifier_port=0, quantization=target,
        drafter_flags=("--quantization", draft), start_timeout_s=240,
    )  # fmt: skip
    cases = cases[: len(SAMPLINGS)]
    with ForkedStack(config) as running:
        client = Client(running.address)
        served = client.stub.Info(pb.GenerationInfoRequest())
        assert (served.verifier.quantization, served.drafter.quantization) == (target, draft)
        plain = client.tokens(cases, "autoregressive", concurrency=1)
        assert any(len(tokens) > 10 for tokens in plain)
        assert client.tokens(cases, "autoregressive", concurrency=8) == plain
        for strategy, concurrency in (("fused", 1), ("fused", 8), ("lookahead", 4), ("cascade", 2)):
            drafted_alike(client, cases, plain, strategy, concurrency)
        client.channel.close()


@pytest.mark.timeout(600)
def test_split_models_equal_plain_decoding(cases: list[Case], expected: list[list[int]]) -> None:
    """Target and draft model, each split over two processes, give the output of unsplit models."""
    config = StackConfig(
        port=0, http_port=None, drafter_port=0, verifier_port=0, dtype="float32",
        tensor_parallel_size=2, drafter_flags=("--tensor-parallel-size", "2"), start_timeout_s=240,
    )  # fmt: skip
    count = len(SAMPLINGS)
    with ForkedStack(config) as running:
        client = Client(running.address)
        served = client.stub.Info(pb.GenerationInfoRequest())
        assert served.verifier.tensor_parallel_size == served.drafter.tensor_parallel_size == 2
        assert client.tokens(cases[:count], "autoregressive", 8) == expected[:count]
        for strategy, concurrency in (("fused", 1), ("opt_tree", 8)):
            drafted_alike(client, cases[:count], expected[:count], strategy, concurrency)
        client.channel.close()


@pytest.mark.timeout(600)
def test_killed_drafter_changes_no_token(
    stack: ForkedStack, client: Client, cases: list[Case], expected: list[list[int]]
) -> None:
    """SIGKILL while all requests run: they go on without drafts of the draft model.

    All strategies that use the drafter run, as each keeps different state beside the text.
    """
    strategies = [name for name, _ in zip(itertools.cycle(DRAFTER_STRATEGIES), cases, strict=False)]
    requests = [
        case.parameters(strategy, DRAFT_TOKENS, tenant="killed")
        for case, strategy in zip(cases, strategies, strict=True)
    ]
    for each in requests:  # otherwise phrases might draft without the drafter
        each.speculation.ouroboros.phrases_alone = False
    try:
        with Streams(client, requests) as streams:
            streams.wait_until_under_way()
            stack.processes["drafter"].kill()
            outputs = streams.wait_for_tokens()
        while_dead = client.once(cases[1], "speculative", max_draft_tokens=DRAFT_TOKENS)
    finally:
        stack.restart("drafter")
    assert not first_difference(expected, outputs)
    figures = list(zip(strategies, streams.figures, strict=True))
    assert {name for name, each in figures if each.draft_forwards} == {*DRAFTER_STRATEGIES}
    # Some requests may have ended before. Most lose their drafter in the middle of their output.
    drafting = {name for name, each in figures if each.draft_forwards and each.fallback_rounds}
    assert len(drafting) > len(DRAFTER_STRATEGIES) // 2, drafting
    assert list(while_dead.token_ids) == expected[1]
    assert while_dead.summary.speculation.fallback_rounds > 0


@pytest.mark.timeout(600)
def test_restarted_drafter_is_used_again(
    stack: ForkedStack, client: Client, cases: list[Case], expected: list[list[int]]
) -> None:
    """A restarted drafter is found and used again."""
    for _ in range(20):
        answer = client.once(cases[1], "speculative", max_draft_tokens=DRAFT_TOKENS)
        assert list(answer.token_ids) == expected[1]
        if answer.summary.speculation.draft_forwards:
            return
        threading.Event().wait(0.3)
    pytest.fail("the drafter was never asked again")
