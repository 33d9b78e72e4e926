"""Work on bodies of megabytes does not run on the event loop, or is not done at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from draftloop.errors import InvalidInput
from draftloop.metrics import REGISTRY
from draftloop.request import check_biases, check_token_ids
from draftloop.rpc import convert
from orchestrator.front import Front
from orchestrator.gateway import parameters, prompts
from orchestrator.gateway.chat_template import ChatTemplate
from orchestrator.gateway.messages import for_template
from orchestrator.gateway.schemas import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from orchestrator.gateway.size import is_large
from orchestrator.servicer import GenerationServicer
from orchestrator.tokenizer import Tokenizer
from protos import generation_pb2 as pb
from protos.speculation_pb2 import SamplingParameters
from tests.support.gateway import gateway
from tests.support.grpc_context import FakeContext

REFUSED = {"temperature": -1}  # refused once the prompt has been read
MANY = 100_000
MESSAGE = {"role": "user", "content": ""}
CHATS: list[tuple[int, dict[str, Any]]] = [(1, {}), (3000, {}), (1, {"a": [[]] * MANY})]
MANY_BIASES = SamplingParameters(logit_bias=dict.fromkeys(range(MANY), 1.0))
LARGE: list[Any] = ["a" * 100, ["", "", "", ""], {"a": {"b": "c"}}, [[[[]]]]]


class RecordedCalls(list[tuple[int, bool]]):
    """Calls of a function: the argument's length, and whether they ran on the event loop."""

    def spy(self, function: Callable[..., Any], argument: int = 0) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            on_the_loop = threading.current_thread() is threading.main_thread()
            self.append((len(args[argument]), on_the_loop))
            return function(*args, **kwargs)

        return called


@pytest.fixture
def decode_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedCalls]:
    calls = RecordedCalls()
    monkeypatch.setattr(Tokenizer, "decode", calls.spy(Tokenizer.decode, 1))
    yield calls


async def refusal(path: str, body: dict[str, Any]) -> tuple[str | None, str | None]:
    """The code and the parameter of the refusal."""
    async with gateway() as (client, _):
        answer = await client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]["code"], answer.json()["error"]["param"]


async def test_too_long_token_prompt_is_refused_without_further_checks(
    decode_calls: RecordedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = RecordedCalls()
    monkeypatch.setattr(prompts, "check_token_ids", checked.spy(check_token_ids, 1))
    code = "context_length_exceeded"
    assert await refusal("/v1/completions", {"prompt": [5] * MANY}) == (code, "prompt")
    several = {"prompt": [[5], [5] * MANY], "echo": True}
    assert await refusal("/v1/completions", several) == (code, "prompt[1]")
    assert (decode_calls, checked) == ([(1, True)], [(1, True)])


async def test_token_prompt_is_decoded_only_for_echo_after_truncation(
    decode_calls: RecordedCalls,
) -> None:
    # Prompt tokens are decoded only for `echo`, and only those that truncation leaves.
    for echo, cut in ((False, None), (True, None), (False, 7), (True, 7)):
        tokens = MANY if cut else 9
        body = {"prompt": [5] * tokens, "echo": echo, "truncate_prompt_tokens": cut, **REFUSED}
        assert await refusal("/v1/completions", body) == ("invalid_value", "temperature")
    assert decode_calls == [(9, True), (7, True)]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_large_chat_is_rendered_off_the_event_loop(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Large chats are rendered off the event loop, small ones on it.
    read, rendered = RecordedCalls(), RecordedCalls()
    monkeypatch.setattr(prompts, "for_template", read.spy(for_template))
    monkeypatch.setattr(ChatTemplate, "render", rendered.spy(ChatTemplate.render, 1))
    end = REFUSED if path != "/tokenize" else {}
    async with gateway() as (client, _):
        for size, options in CHATS:
            body = {"messages": [MESSAGE] * size, "chat_template_kwargs": options, **end}
            await client.post(path, json=body)
    assert read == rendered == [(1, True), (3000, False), (1, False)]


async def test_too_many_biases_are_refused_without_conversion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conversions = RecordedCalls()
    monkeypatch.setattr(parameters, "_logit_bias", conversions.spy(parameters._logit_bias))
    biases = {str(token): 1 for token in range(4097)}
    error = await refusal("/v1/completions", {"prompt": "a", "logit_bias": biases})
    assert error == ("invalid_value", "logit_bias") and not conversions
    del biases["4096"]
    error = await refusal("/v1/completions", {"prompt": "a", "logit_bias": biases, **REFUSED})
    assert error == ("invalid_value", "temperature") and conversions == [(4096, True)]


@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids"])
async def test_too_long_token_lists_are_refused_before_making_choices(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 128 choices would copy the list and send it to both model services."""
    conversions = RecordedCalls()
    monkeypatch.setattr(parameters, "_logit_bias", conversions.spy(parameters._logit_bias))
    error = await refusal("/v1/completions", {"prompt": "a", "n": 128, field: [5] * 4097})
    assert error == ("invalid_value", field) and not conversions


async def test_many_tokens_are_decoded_off_the_event_loop(decode_calls: RecordedCalls) -> None:
    async with gateway() as (client, deployment):
        answer = await client.post("/detokenize", json={"tokens": [5] * MANY})
        servicer: Any = GenerationServicer(Front(deployment))
        request = pb.DetokenizeRequest(token_ids=[5] * MANY)
        response = await servicer.Detokenize(request, FakeContext())
    assert answer.json()["prompt"] == response.text
    assert decode_calls == [(MANY, False)] * 2


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("tokens.ids", pb.GenerationParameters(tokens=pb.TokenIds(ids=[5] * MANY))),
        ("logit_bias", pb.GenerationParameters(text="a", sampling=MANY_BIASES)),
        ("stop_token_ids", pb.GenerationParameters(text="a", stop_token_ids=[5] * MANY)),
        ("allowed_token_ids", pb.GenerationParameters(text="a", allowed_token_ids=[5] * MANY)),
    ],
)
async def test_too_many_token_ids_over_grpc_are_refused_without_conversion(
    field: str, message: pb.GenerationParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: list[Any] = []
    monkeypatch.setattr(convert, "parameters_from_pb", converted.append)
    async with gateway() as (_, deployment):
        servicer: Any = GenerationServicer(Front(deployment))
        with pytest.raises(InvalidInput) as caught:
            request = pb.GenerateOnceRequest(parameters=message)
            await servicer.GenerateOnce(request, FakeContext())
    assert caught.value.field == field and not converted


async def test_grpc_request_that_cannot_be_converted_counts_as_refused() -> None:
    name, labels = "draftloop_request_failure_total", {"reason": "invalid_input"}
    before = REGISTRY.get_sample_value(name, labels)
    speculation = pb.SpeculationParameters(phrases=99)  # type: ignore[arg-type]
    parameters = pb.GenerationParameters(text="a", speculation=speculation)
    request = pb.GenerateOnceRequest(parameters=parameters)
    async with gateway() as (_, deployment):
        servicer: Any = GenerationServicer(Front(deployment))
        with pytest.raises(InvalidInput, match=r"^speculation\.phrases"):
            await servicer.GenerateOnce(request, FakeContext())
    assert before is not None and REGISTRY.get_sample_value(name, labels) == before + 1


async def test_token_strings_are_made_on_request_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = RecordedCalls()
    monkeypatch.setattr(Tokenizer, "token_text", lambda self, _: named.spy(str)(""))
    async with gateway() as (client, _):
        assert (await client.post("/tokenize", json={"prompt": "a " * 5000})).status_code == 200
        assert not named
        body = {"prompt": "a " * 5000, "return_token_strs": True}
        assert (await client.post("/tokenize", json=body)).status_code == 200
    assert len(named) >= 5000 and not any(on_the_loop for _, on_the_loop in named)


def test_invalid_entry_among_many_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"^prompt\[70000\]: must be from 0 to 4095; got -1"):
        check_token_ids("prompt", [5] * 70_000 + [-1], 4096)
    biases = tuple((token, 1.0) for token in range(4000))
    check_biases(biases, 4096)
    for invalid in ((4096, 1.0), (5, 1.0), (4001, float("nan")), (4001, 101.0)):
        with pytest.raises(InvalidInput, match="^logit_bias"):
            check_biases((*biases, invalid), 4096)


def test_large_bodies_are_recognized() -> None:
    assert not is_large(100, None, "a" * 30, [])
    assert all(is_large(100, large) for large in LARGE)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionBody, {"prompt": [5] * MANY + [""]}),
        (CompletionBody, {"prompt": "a", "stop": [1] * MANY}),
        (CompletionBody, {"prompt": "a", "stop_token_ids": [""] * MANY}),
        (CompletionBody, {"prompt": "a", "allowed_token_ids": [""] * MANY}),
        (CompletionBody, {"prompt": "a", "bad_words": [1] * MANY}),
        (CompletionBody, {"prompt": "a", "logit_bias": dict.fromkeys(map(str, range(MANY)), "")}),
        (CompletionBody, {"prompt": "a", "metadata": dict.fromkeys(map(str, range(MANY)), 1)}),
        (ChatBody, {"messages": [1] * MANY}),
        (ChatBody, {"messages": [{"role": "user", "content": [1] * MANY}]}),
        (ChatBody, {"messages": [MESSAGE], "tools": [1] * MANY}),
        (TokenizeBody, {"messages": [1] * MANY}),
        (DetokenizeBody, {"tokens": [""] * MANY}),
    ],
    ids=lambda value: [*value][-1] if isinstance(value, dict) else value.__name__,
)
def test_only_the_first_of_many_errors_is_reported(kind: type[BaseModel], body: Any) -> None:
    """A million errors would take seconds to build."""
    with pytest.raises((InvalidInput, ValidationError)) as caught:
        kind.model_validate(body)
    problem: Any = caught.value
    assert isinstance(problem, InvalidInput) or problem.error_count() <= 3  # one per branch


async def test_large_body_is_validated_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, path, short, long in (
        (CompletionBody, "/v1/completions", {"prompt": "a"}, {"prompt": "a" * MANY}),
        (ChatBody, "/v1/chat/completions", {"messages": [MESSAGE]}, {"messages": [MESSAGE] * 3000}),
        (TokenizeBody, "/tokenize", {"prompt": "a"}, {"prompt": "a" * MANY}),
        (DetokenizeBody, "/detokenize", {"tokens": [5]}, {"tokens": [5] * MANY}),
    ):
        calls = RecordedCalls()
        monkeypatch.setattr(kind, "model_validate", calls.spy(kind.model_validate))
        async with gateway() as (client, _):
            for body in (short, long):
                await client.post(path, json={**body, "nothing": 1})
        assert calls == [(2, True), (2, False)]


@pytest.mark.parametrize("size", [1, MANY])
async def test_malformed_body_gives_the_same_error_at_any_size(size: int) -> None:
    assert await refusal("/v1/completions", {"prompt": "a" * size, "x": 1}) == (
        "unknown_parameter", "x",
    )  # fmt: skip
    assert await refusal("/detokenize", {"tokens": [5] * size + [""]}) == (
        "invalid_value", f"tokens[{size}]",
    )  # fmt: skip
    assert await refusal("/tokenize", {"prompt": "a" * size, "messages": [MESSAGE]}) == (
        "invalid_value", "prompt",
    )  # fmt: skip
