"""Other model families than the bundled pair: lossless through all services to a full context."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from transformers import PretrainedConfig

from orchestrator.stack_config import StackConfig
from tests.e2e.client import STRATEGIES, Case, Client, assert_drafted_alike, first_difference
from tests.support.families import FAMILIES
from tests.support.forked import ForkedStack
from tests.support.toy_model import VOCABULARY_SIZE, llama_config, save_model

# Learned positions; attention sinks, a sliding window and experts; keys longer than values.
KINDS = ("gpt2", "gpt_oss", "deepseek_v3")
# Larger models of a family often have a few more rows than its tokenizer has tokens. Models with
# random weights often choose those rows.
LLAMA, PADDED = llama_config(), llama_config(vocab_size=VOCABULARY_SIZE + 32)
# Its texts soon hold a token that the draft model lacks; drafters refuse such texts.
UNUSED_TOKENS = "a target with unused tokens"
PAIRS: dict[str, tuple[PretrainedConfig, PretrainedConfig]] = {
    **{kind: (FAMILIES[kind], FAMILIES[kind]) for kind in KINDS},
    UNUSED_TOKENS: (PADDED, LLAMA),
    "a draft model with unused tokens": (LLAMA, PADDED),
}
PROMPT, CONTEXT, DRAFT_TOKENS = 60, 128, 12


@pytest.fixture(scope="module", params=PAIRS)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    target, draft = (
        save_model(tmp_path_factory.mktemp("model"), config) for config in PAIRS[request.param]
    )
    config = StackConfig(
        target=target, draft=draft, port=0, http_port=0, drafter_port=0, verifier_port=0,
        dtype="float32", start_timeout_s=240,
    )  # fmt: skip
    with ForkedStack(config) as running:
        client = Client(running.address)
        yield client
        client.channel.close()


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Cases in which the end token is biased away, so that outputs fill the context."""
    rng = random.Random(1)
    prompts = [tuple(rng.randrange(1, VOCABULARY_SIZE) for _ in range(PROMPT)) for _ in range(8)]
    return [
        Case(
            prompt,
            CONTEXT,
            {"seed": seed, "temperature": 0.7 if seed % 3 else 0.0, "logit_bias": {0: -100.0}},
        )
        for seed, prompt in enumerate(prompts)
    ]


def test_no_strategy_changes_a_token(
    client: Client, cases: list[Case], request: pytest.FixtureRequest
) -> None:
    is_refused = request.node.callspec.params["client"] == UNUSED_TOKENS
    plain = client.tokens(cases, "autoregressive", concurrency=8)
    assert {len(tokens) for tokens in plain} == {CONTEXT - PROMPT}
    for strategy in STRATEGIES[1:]:
        if is_refused:
            drafted = client.tokens(cases, strategy, 8, max_draft_tokens=DRAFT_TOKENS)
            assert not first_difference(plain, drafted), strategy
        else:
            assert_drafted_alike(client, cases, plain, strategy, 8, DRAFT_TOKENS)
