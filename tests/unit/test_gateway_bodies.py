"""HTTP bodies: what they may contain, what becomes of it, and how the rest is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from draftloop.errors import DeadlineExceeded, InvalidInput, Overloaded, Unavailable
from draftloop.grammar import Grammar
from draftloop.phrase import PhraseScope
from draftloop.request import SamplingParameters
from orchestrator.gateway import parameters as reading
from orchestrator.gateway.errors import Problem, UnknownModel, body_problem, problem
from orchestrator.gateway.generating import Generating
from orchestrator.gateway.messages import UNREADABLE_FILE, UNSEEN_IMAGE, join_text
from orchestrator.gateway.responses.body import ResponseBody
from orchestrator.gateway.schemas import ChatBody, CompletionBody, TokenizeBody
from orchestrator.gateway.structure import grammar_of

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}}


def named(function: str) -> dict[str, Any]:
    """The tool choice that names this function."""
    return {"type": "function", "function": {"name": function}}


def completion(**body: Any) -> CompletionBody:
    return CompletionBody.model_validate({"prompt": "x", **body})


def chat(**body: Any) -> ChatBody:
    return ChatBody.model_validate({"messages": HELLO, **body})


def parameters(body: Generating, prompt: tuple[int, ...], tenant: str) -> Any:
    return reading.parameters(body, prompt, tenant, reading.seed_of(body), grammar_of(body))


def refusal(kind: type[Generating] | type[TokenizeBody], body: Any) -> Problem:
    """The error that the client gets."""
    try:
        kind.model_validate(body)
    except ValidationError as error:
        problems = [{**detail, "loc": ("body", *detail["loc"])} for detail in error.errors()]
        return body_problem(problems)
    except InvalidInput as error:
        return problem(error)
    raise AssertionError(f"{body} was accepted")


def test_unset_fields_have_openai_defaults() -> None:
    (got,) = parameters(completion(), (5,), "")
    assert got.sampling.temperature == 1 and got.sampling.top_p == 1
    assert got.max_tokens is None and got.logprobs is None and got.stop == ()
    assert got.speculation.strategy == "" and got.speculation.phrases is PhraseScope.SHARED


def test_unset_fields_may_use_the_models_recommendation() -> None:
    defaults = SamplingParameters(temperature=0.6, top_k=20, top_p=0.95)
    (unset,) = reading.parameters(completion(), (5,), "", 1, None, defaults)
    assert unset.sampling == defaults
    (merged,) = reading.parameters(completion(temperature=0, top_k=-1), (5,), "", 1, None, defaults)
    assert merged.sampling == SamplingParameters(temperature=0, top_k=0, top_p=0.95)


def test_null_means_unset() -> None:
    fields = [name for name in CompletionBody.model_fields if name != "prompt"]
    assert parameters(completion(seed=1, **dict.fromkeys(set(fields) - {"seed"})), (5,), "") == (
        parameters(completion(seed=1), (5,), "")
    )


def test_set_fields_are_converted() -> None:
    body = completion(
        temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, repetition_penalty=1.1,
        presence_penalty=0.2, frequency_penalty=0.3, logit_bias={"7": -1}, max_tokens=9, seed=3,
        stop="\n", stop_token_ids=[4], ignore_eos=True, logprobs=2, prediction={
            "type": "content", "content": [{"type": "text", "text": "a"}]
        }, speculative={"strategy": "fused", "max_draft_tokens": 4, "phrases": "private"},
    )  # fmt: skip
    (got,) = parameters(body, (5, 6), "team")
    assert got.token_ids == (5, 6) and got.tenant == "team" and got.prediction == "a"
    assert (got.sampling.temperature, got.sampling.top_k, got.sampling.min_p) == (0.5, 40, 0.1)
    assert got.sampling.logit_bias == ((7, -1.0),) and got.seed == 3 and got.max_tokens == 9
    assert got.stop == ("\n",) and got.stop_token_ids == (4,) and got.ignore_eos
    assert got.logprobs == 2 and got.speculation.strategy == "fused"
    assert got.speculation.max_draft_tokens == 4
    assert got.speculation.phrases is PhraseScope.PRIVATE


@pytest.mark.parametrize(("seed", "seeds"), [(5, [5, 6]), (2**64 - 1, [2**64 - 1, 0]),
                                             (-1, [2**64 - 1, 0])])  # fmt: skip
def test_each_choice_has_its_own_seed(seed: int, seeds: list[int]) -> None:
    assert [choice.seed for choice in parameters(completion(seed=seed, n=2), (5,), "")] == seeds


@pytest.mark.parametrize("body", [chat, completion])
def test_max_completion_tokens_is_accepted(body: Any) -> None:
    """Some clients, such as guidellm up to 0.3, send both names to both kinds of completion."""
    assert parameters(body(max_completion_tokens=7), (5,), "")[0].max_tokens == 7
    assert parameters(body(max_completion_tokens=7, max_tokens=7), (5,), "")[0].max_tokens == 7


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_negative_limit_of_a_chat_means_no_limit(name: str) -> None:
    """Clients of llama.cpp and LM Studio send -1. A text completion would fill the context."""
    (got,) = parameters(chat(**{name: -1}), (5,), "")
    assert got.max_tokens is None and got.ends_itself
    assert refusal(CompletionBody, {"prompt": "x", name: -1}).param == name
    assert refusal(ChatBody, {"messages": HELLO, name: -2}).param == name


@pytest.mark.parametrize(("body", "count"), [({}, None), ({"logprobs": False}, None),
    ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 3}, 3)])  # fmt: skip
def test_logprobs_options_of_a_chat(body: dict[str, Any], count: int | None) -> None:
    assert parameters(chat(**body), (5,), "")[0].logprobs == count


def test_agents_may_offer_hundreds_of_tools() -> None:
    """Agents offer their own tools and those of all MCP servers that they know."""
    several = [{**TOOL, "function": {"name": f"tool_{number}"}} for number in range(1000)]
    assert len(chat(tools=several).tools or ()) == 1000


@pytest.mark.parametrize("body", [chat, completion])
@pytest.mark.parametrize(("fields", "grammar"), [
    ({"response_format": {"type": "json_object", "schema": {"type": "null"}}},
     Grammar("json_schema", '{"type": "null"}')),
    ({"response_format": {"type": "json_schema", "schema": True}}, Grammar("json_schema", "true")),
    ({"guided_json": {"type": "null"}}, Grammar("json_schema", '{"type": "null"}')),
    ({"guided_regex": "a+"}, Grammar("regex", "a+")),
    ({"guided_choice": ["a"]}, Grammar("choice", '["a"]')),
    ({"guided_decoding_backend": "guidance", "guided_grammar": "start: /a/",
      "structured_outputs": {"grammar": "start: /a/"}}, Grammar("grammar", "start: /a/")),
])  # fmt: skip
def test_llama_cpp_and_older_vllm_grammar_fields_are_accepted(
    body: Any, fields: dict[str, Any], grammar: Grammar
) -> None:
    assert grammar_of(body(**fields)) == grammar


def test_long_schema_is_refused_before_it_is_combined_with_others() -> None:
    """Combining it took seconds on the event loop."""
    schema: dict[str, Any] = {str(number): {} for number in range(20_000)}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    with pytest.raises(InvalidInput, match="^response_format: must have from 1 to 65536 char"):
        grammar_of(chat(response_format=form))


@pytest.mark.parametrize("body", [
    {"suffix": ""}, {"suffix": None}, {"response_format": {"type": "text"}},
    {"user": "me"}, {"metadata": {"a": "b"}}, {"best_of": 1}, {"top_k": -1},
    {"prompt": ["a", "b"]}, {"prompt": [1, 2]}, {"prompt": [[1], [2, 3]]},
    {"speculative": {"window": None}, "stream": True, "stream_options": {"delivery": None}},
])  # fmt: skip
def test_default_valued_completion_fields_are_accepted(body: dict[str, Any]) -> None:
    completion(**body)


@pytest.mark.parametrize("body", [
    {"tools": []}, {"tool_choice": "none"}, {"modalities": ["text"]}, {"store": False},
    {"service_tier": "auto"}, {"parallel_tool_calls": True}, {"store": True}, {"stop": ""},
    {"reasoning_effort": "low"}, {"top_logprobs": 0}, {"kv_transfer_params": None},
    {"use_beam_search": False, "priority": 0, "cache_prompt": True},
    {"echo": False, "best_of": 1, "mm_processor_kwargs": {}, "guided_decoding_backend": "auto"},
    {"messages": [*HELLO, {"role": "assistant", "content": None, "refusal": "", "tool_calls": []}]},
    {"messages": [{"role": "user", "content": [
        {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}]},
    {"tools": [{**TOOL, "strict": True}]},
    {"messages": [{"role": "assistant", "content": "x", "tool_calls": None, "audio": None}]},
    {"tools": [TOOL], "tool_choice": "none", "response_format": {"type": "json_object"}},
    {"tools": [TOOL], "tool_choice": named("a"), "response_format": {"type": "text"}},
    {"tools": [TOOL], "response_format": {"type": "json_object"}},
    {"tools": [TOOL], "structured_outputs": {"regex": "a"}},
    {"messages": [{"role": "developer", "content": [{"type": "text", "text": "x"}]}]},
    {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}, "messages": [{"role": "user",
        "content": [{"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}]
    }]},
    {"messages": [*HELLO, {"role": "assistant", "tool_calls": [{"id": "1", "custom": None,
        "function": {"name": "a", "arguments": "{}", "output": None}}]}]},
    {"tools": [{**TOOL, "custom": None}], "response_format": {"type": "text", "schema": None}},
])  # fmt: skip
def test_default_valued_chat_fields_are_accepted(body: dict[str, Any]) -> None:
    chat(**body)


def test_assistant_message_as_sent_by_litellm_is_accepted() -> None:
    """LiteLLM puts what its classes lack into fields of its own, and sends them back."""
    extra = {"provider_specific_fields": {"refusal": None, "reasoning": "hm"}}
    function = {"name": "a", "arguments": "{}", **extra}
    call = {"id": "1", "type": "function", "function": function, **extra}
    cached = {"cache_control": {"type": "ephemeral"}}
    answer = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call],
              "thinking_blocks": [{"type": "thinking", "thinking": "hm"}], **extra}  # fmt: skip
    user, reply = chat(messages=[{**HELLO[0], **cached}, answer]).messages
    assert user.content == "hello" and reply.reasoning == "hm" and reply.tool_calls is not None
    assert reply.tool_calls[0].function.arguments == "{}"


def test_images_and_files_in_tool_results_become_placeholders() -> None:
    """A refusal would end an agent's conversation, which contains the picture from then on."""
    content = [{"type": "text", "text": "shot"}, {"type": "image_url", "image_url": {"url": "x"}},
               {"type": "image", "base64": "x"}, {"type": "file", "file": {}}]  # fmt: skip
    turn = {"role": "tool", "tool_call_id": "1", "content": content}
    text = join_text(chat(messages=[*HELLO, turn]).messages[1].content)
    assert text == f"shot\n{UNSEEN_IMAGE}\n{UNSEEN_IMAGE}\n{UNREADABLE_FILE}"


@pytest.mark.parametrize(("body", "param", "code"), [
    ({}, "prompt", "missing_required_parameter"),
    ({"prompt": None}, "prompt", "invalid_value"),
    ({"prompt": []}, "prompt", "invalid_value"),
    ({"prompt": [[]]}, "prompt", "invalid_value"),
    ({"prompt": [1, 2.5]}, "prompt[1]", "invalid_value"),
    ({"prompt": [True]}, "prompt[0]", "invalid_value"),
    ({"prompt": [[1], "a"]}, "prompt[1]", "invalid_value"),
    ({"prompt": "x", "temperatur": 1}, "temperatur", "unknown_parameter"),
    ({"prompt": "x", "str": 1}, "str", "unknown_parameter"),
    ({"prompt": "x", "temperature": "1"}, "temperature", "invalid_value"),
    ({"prompt": "x", "temperature": float("nan")}, "temperature", "invalid_value"),
    ({"prompt": "x", "chat_template_kwargs": {"a": [float("inf")]}}, "chat_template_kwargs",
     "invalid_value"),
    ({"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": None}}},
     "response_format.json_schema.schema", "invalid_value"),
    ({"prompt": "x", "max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"prompt": "x", "max_tokens": -1, "echo": True}, "max_tokens", "invalid_value"),
    ({"prompt": "x", "max_tokens": 2**40}, "max_tokens", "invalid_value"),
    ({"prompt": "x", "max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "invalid_value"),
    ({"prompt": "x", "n": 0}, "n", "invalid_value"),
    ({"prompt": "x", "n": True}, "n", "invalid_value"),
    ({"prompt": "x", "best_of": 3}, "best_of", "invalid_value"),
    ({"prompt": "x", "seed": 2**64}, "seed", "invalid_value"),
    ({"prompt": "x", "stop": [1]}, "stop[0]", "invalid_value"),
    ({"prompt": "x", "logprobs": 21}, "logprobs", "invalid_value"),
    ({"prompt": "x", "stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "invalid_value"),
    ({"prompt": "x", "suffix": "y"}, "suffix", "unsupported_parameter"),
    ({"prompt": "x", "response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    ({"prompt": "x", "response_format": {"type": "json_schema"}}, "response_format.json_schema",
     "invalid_value"),
    ({"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
     "response_format.json_schema.schema", "missing_required_parameter"),
    ({"prompt": "x", "response_format": {"type": "text", "schema": {}}}, "response_format.schema",
     "invalid_value"),
    ({"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": {}},
      "schema": {}}}, "response_format.schema", "invalid_value"),
    ({"prompt": "x", "response_format": {"type": "json_object", "schema": 1}},
     "response_format.schema", "invalid_value"),
    ({"prompt": "x", "guided_regex": "a", "structured_outputs": {"regex": "b"}},
     "structured_outputs", "invalid_value"),
    ({"prompt": "x", "guided_regex": "a", "guided_json": {}}, "structured_outputs",
     "invalid_value"),
    ({"prompt": "x", "structured_outputs": {}}, "structured_outputs", "invalid_value"),
    ({"prompt": "x", "structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs",
     "invalid_value"),
    ({"prompt": "x", "structured_outputs": {"regx": "a"}}, "structured_outputs.regx",
     "unknown_parameter"),
    ({"prompt": "x", "structured_outputs": {"regex": "a"},
      "response_format": {"type": "json_object"}}, "structured_outputs", "invalid_value"),
    ({"prompt": "x", "stream_options": {}}, "stream_options", "invalid_value"),
    ({"prompt": "x", "stream": True, "stream_options": {"a": 1}}, "stream_options.a",
     "unknown_parameter"),
    ({"prompt": "x", "speculative": {"strateg": "a"}}, "speculative.strateg", "unknown_parameter"),
    ({"prompt": "x", "speculative": {"phrases": "a"}}, "speculative.phrases", "invalid_value"),
    ({"prompt": "x", "prediction": {"type": "content"}}, "prediction.content",
     "missing_required_parameter"),
    ([], None, "invalid_json"),
])  # fmt: skip
def test_bad_completions_name_their_field(body: Any, param: str | None, code: str) -> None:
    error = refusal(CompletionBody, body)
    assert (error.status, error.param, error.code) == (400, param, code)
    assert error.message.startswith(f"{param or 'body'}: ")


@pytest.mark.parametrize(("body", "param", "code"), [
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
    ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_value"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
     "messages[0].content[0].type", "invalid_value"),
    ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]},
     "messages[0].tool_calls[0].function", "missing_required_parameter"),
    ({"messages": HELLO, "tools": [{}]}, "tools[0].type", "missing_required_parameter"),
    ({"messages": HELLO, "tools": [{"type": "custom", "custom": {}}]}, "tools[0].type",
     "invalid_value"),
    ({"messages": HELLO, "tools": [TOOL, TOOL]}, "tools", "invalid_value"),
    ({"messages": HELLO, "tools": [TOOL] * 1025}, "tools", "invalid_value"),
    ({"messages": HELLO, "tools": [TOOL], "tool_choice": "any"}, "tool_choice", "invalid_value"),
    ({"messages": HELLO, "tools": [TOOL], "tool_choice": {"type": "function"}},
     "tool_choice.function", "missing_required_parameter"),
    ({"messages": HELLO, "tools": [TOOL], "tool_choice": named("other")},
     "tool_choice.function.name", "invalid_value"),
    ({"messages": HELLO, "functions": [{}]}, "functions", "unsupported_parameter"),
    ({"messages": HELLO, "audio": {}}, "audio", "unsupported_parameter"),
    ({"messages": HELLO, "modalities": ["audio"]}, "modalities", "unsupported_parameter"),
    ({"messages": HELLO, "tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"messages": HELLO, "tool_choice": named("a")}, "tool_choice", "invalid_value"),
    ({"messages": HELLO, "top_logprobs": 1}, "top_logprobs", "invalid_value"),
    ({"messages": HELLO, "max_tokens": 1, "max_completion_tokens": 2}, "max_tokens",
     "invalid_value"),
    ({"messages": HELLO, "echo": True}, "echo", "unsupported_parameter"),
    ({"messages": HELLO, "max_tokens": 0}, "max_tokens", "invalid_value"),
])  # fmt: skip
def test_bad_chats_name_their_field(body: Any, param: str, code: str) -> None:
    error = refusal(ChatBody, body)
    assert (error.status, error.param, error.code) == (400, param, code)


@pytest.mark.parametrize("body", [{}, {"prompt": "x", "messages": HELLO}])
def test_tokenize_requires_either_prompt_or_messages(body: dict[str, Any]) -> None:
    assert refusal(TokenizeBody, body).param == "prompt"


@pytest.mark.parametrize("key", ["a", "-1", "1.0", "", "٣", "9" * 30])
def test_logit_bias_keys_must_be_token_ids(key: str) -> None:
    with pytest.raises(InvalidInput, match="logit_bias: must have token ids as its names"):
        parameters(completion(logit_bias={key: 1}), (5,), "")


@pytest.mark.parametrize(("error", "status", "retry_after"), [
    (InvalidInput("speculation.strategy", "must be known", "x"), 400, None),
    (UnknownModel("model", "must be 'a'", "b"), 404, None),
    (Overloaded("requests: at most 1 run at once", 0.2), 429, "1"),
    (Unavailable("verifier: none", 2.5), 503, "3"),
    (DeadlineExceeded(), 504, None),
    (RuntimeError("a secret"), 500, None),
])  # fmt: skip
def test_every_error_maps_to_an_http_status(
    error: Exception, status: int, retry_after: str | None
) -> None:
    response = problem(error)
    assert response.status == status and response.headers.get("Retry-After") == retry_after
    assert set(response.body["error"]) == {"message", "type", "param", "code"}
    assert "secret" not in response.message


def test_errors_use_the_clients_field_names() -> None:
    response = problem(InvalidInput("speculation.strategy", "must be known", "x"))
    assert response.param == "speculative.strategy"
    assert response.message == "speculative.strategy: must be known; got 'x'"


@pytest.mark.parametrize("verbosity", ["low", "medium", "high", None])
def test_verbosity_is_accepted(verbosity: str | None) -> None:
    """The Agents SDK sends `low` for its default model."""
    assert chat(verbosity=verbosity).verbosity == verbosity
    parsed = ResponseBody.model_validate({"input": "x", "text": {"verbosity": verbosity}})
    assert parsed.text is not None and parsed.text.verbosity == verbosity
    assert refusal(ChatBody, {"messages": HELLO, "verbosity": "loud"}).param == "verbosity"
