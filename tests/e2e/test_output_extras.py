"""What an answer can carry beside its tokens: log-probabilities; and predicted outputs."""

from __future__ import annotations

import grpc
import pytest

from draftloop.config import bundled_model
from draftloop.logprobs import MAX_TOP_LOGPROBS
from orchestrator.tokenizer import Tokenizer
from protos import generation_pb2 as pb
from protos import speculation_pb2 as shared
from tests.e2e.client import STRATEGIES, Case, Client


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_logprobs_do_not_depend_on_the_drafts(
    client: Client, cases: list[Case], strategy: str
) -> None:
    case = cases[3]  # penalties and temperature; log-probabilities are the model's own nevertheless
    plain = client.once(case, "autoregressive", logprobs=3)
    drafted = client.once(case, strategy, logprobs=3)
    assert [entry.token_id for entry in drafted.logprobs] == list(drafted.token_ids)
    for expected, actual in zip(plain.logprobs, drafted.logprobs, strict=True):
        assert actual.token_id == expected.token_id
        assert actual.logprob == pytest.approx(expected.logprob, abs=1e-4)
        assert actual.top_logprobs == pytest.approx(list(expected.top_logprobs), abs=1e-4)
        assert list(actual.top_logprobs) == sorted(actual.top_logprobs, reverse=True)


def test_greedy_tokens_have_the_highest_logprob(client: Client, cases: list[Case]) -> None:
    answer = client.once(cases[0], "fused", logprobs=1)
    assert len(answer.logprobs) == len(answer.token_ids) > 0
    for entry in answer.logprobs:
        assert list(entry.top_token_ids) == [entry.token_id]
        assert entry.top_logprobs[0] == entry.logprob <= 0


def test_logprobs_without_alternatives_and_no_logprobs(client: Client, cases: list[Case]) -> None:
    bare = client.once(cases[0], "fused", logprobs=0)
    assert len(bare.logprobs) == len(bare.token_ids)
    assert not any(entry.top_token_ids for entry in bare.logprobs)
    assert not client.once(cases[0], "fused").logprobs


def test_streams_carry_logprobs_with_their_tokens(client: Client, cases: list[Case]) -> None:
    request = pb.GenerateRequest(parameters=cases[1].parameters("fused", logprobs=2))
    for piece in client.stub.Generate(request):
        assert [entry.token_id for entry in piece.logprobs] == list(piece.token_ids)


def test_too_many_alternatives_are_refused(client: Client, cases: list[Case]) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        client.once(cases[0], "fused", logprobs=MAX_TOP_LOGPROBS + 1)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == "logprobs: must be from 0 to 20; got 21"


@pytest.mark.parametrize("strategy", ["prompt_lookup", "ouroboros", "fused"])
def test_correct_prediction_saves_rounds_and_changes_no_token(
    client: Client, cases: list[Case], strategy: str
) -> None:
    case = cases[1]
    plain = client.once(case, "autoregressive")
    correct = Tokenizer(bundled_model("verifier")).decode(list(plain.token_ids))
    rounds = {}
    for prediction in ("", correct, "nothing of the kind " * 20):
        parameters = case.parameters(strategy, prediction=prediction)
        parameters.speculation.phrases = shared.PHRASE_SCOPE_PRIVATE  # none of other requests
        parameters.speculation.max_draft_tokens = 8  # or measured costs would decide
        answer = client.stub.GenerateOnce(pb.GenerateOnceRequest(parameters=parameters))
        assert list(answer.token_ids) == list(plain.token_ids)
        rounds[prediction] = answer.summary.speculation.rounds
    # In `fused` the draft model finds much of the prediction's text by itself.
    assert rounds[correct] < 0.85 * rounds[""]


def test_prediction_longer_than_the_context_is_refused(client: Client, cases: list[Case]) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        client.once(cases[0], "fused", prediction="word " * 5000)
    assert "prediction: must have at most" in (refused.value.details() or "")
