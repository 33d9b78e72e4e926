"""Structured outputs, by OpenAI's client and by gRPC."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import httpx
import jsonschema
import openai
import pytest
from openai import OpenAI

from draftloop.client import Client as OurClient
from draftloop.client import Grammar
from orchestrator.launcher import Stack
from tests.e2e.client import Case, Client, bad_field
from tests.e2e.conftest import PERSON
from tests.e2e.http_client import complete, complete_chat

SCHEMA = json.loads(PERSON)
NAMED = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
GBNF = 'root ::= "yes" | "no" " really"?'


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_json_schema(api: OpenAI, seed: int) -> None:
    """Whole and streamed, with drafts and without: the same text, which ends by itself."""
    fields: dict[str, Any] = {"response_format": NAMED, "seed": seed, "max_tokens": 200}
    plain = complete_chat(api, **fields, extra_body={"speculative": {"strategy": "autoregressive"}})
    answer = complete_chat(api, **fields)
    text = answer.choices[0].message.content
    assert text == plain.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(text), SCHEMA)
    chunks = complete_chat(api, **fields, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


def test_any_json_object(api: OpenAI) -> None:
    answer = complete_chat(api, response_format={"type": "json_object"}, max_tokens=1)
    assert answer.choices[0].message.content.startswith("{")
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("constraint", "form"),
    [
        ({"regex": r"[0-9]{3}-[0-9]{4}"}, r"[0-9]{3}-[0-9]{4}"),
        ({"choice": ["positive", "negative"]}, "positive|negative"),
        ({"grammar": GBNF}, "yes|no( really)?"),
        ({"json": PERSON}, r"\{[^{}]*\}"),
    ],
)
def test_vllms_structured_outputs_field(api: OpenAI, constraint: dict[str, Any], form: str) -> None:
    answer = complete(api, max_tokens=200, extra_body={"structured_outputs": constraint})
    assert re.fullmatch(form, answer.choices[0].text, re.DOTALL), answer.choices[0].text
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("structured_outputs", {"structured_outputs": {"regex": "(a"}}),
        ("structured_outputs", {"structured_outputs": {"json": "{"}}),
        ("response_format", {"response_format": {
            "type": "json_schema", "json_schema": {"schema": {"type": "objct"}}}}),
        ("ignore_eos", {"response_format": {"type": "json_object"}, "ignore_eos": True}),
    ],
)  # fmt: skip
def test_invalid_grammars_are_refused(api: OpenAI, field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(api, extra_body=fields)
    assert caught.value.param == field


def refused_field(client: Client, case: Case) -> str:
    """The field that the refusal names."""
    with pytest.raises(grpc.RpcError) as caught:
        client.once(case, "fused")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return bad_field(caught.value)


def test_grammars_by_grpc(client: Client, cases: list[Case]) -> None:
    prompt = cases[0].prompt
    assert refused_field(client, Case(prompt, 8, {"grammar": {"regex": "(a"}})) == "grammar.regex"
    assert refused_field(client, Case(prompt, 8, {"grammar": {}})) == "grammar"


def test_grammar_that_grows_too_large_ends_only_its_request(
    client: Client, cases: list[Case]
) -> None:
    """A grammar that grows too large while generating ends its request only; the next is served."""
    growing = Case(cases[0].prompt, 400, {"grammar": {"regex": "(a{1,1000}){1,1000}"}})
    assert refused_field(client, growing) == "grammar.regex"
    valid = Case(cases[0].prompt, 40, {"grammar": {"regex": "a{3}"}})
    assert client.once(valid, "fused").text == "aaa"


@pytest.mark.timeout(300)
def test_grammar_that_becomes_too_slow_ends_only_its_request(
    client: Client, cases: list[Case]
) -> None:
    """An ambiguous grammar would keep the verifier, and all its requests, busy; it is ended."""
    lark = 'start: e "%%%%%"\ne: e e e | e e | T | T T | T e | e T\nT: /[a-z ]/'
    slow = Case(cases[0].prompt, 400, {"grammar": {"grammar": lark}})
    assert refused_field(client, slow) == "grammar.grammar"
    valid = Case(cases[0].prompt, 40, {"grammar": {"regex": "a{3}"}})
    assert client.once(valid, "fused").text == "aaa"


def test_grammars_by_the_python_client(stack: Stack) -> None:
    with OurClient(stack.address) as python_client:
        grammar = Grammar("choice", json.dumps(["red", "green"]))
        assert python_client.generate("The colour is", grammar=grammar, max_tokens=20).text in (
            "red",
            "green",
        )


@pytest.mark.timeout(300)
def test_services_survive_grammars_that_crash_or_hang(
    api: OpenAI, http: httpx.Client, client: Client, cases: list[Case]
) -> None:
    """The orchestrator answers others while it checks such a grammar, and all services survive."""
    rules = "\n".join(f"r{number}: r{number + 1}" for number in range(4000))
    deep = {"grammar": f'start: r0\n{rules}\nr4000: "a"'}
    slow = {"json": '{"type": "integer", "multipleOf": 999983}'}
    alive = 0
    for bomb in (deep, slow):
        with ThreadPoolExecutor(1) as pool:
            request = pool.submit(complete, api, extra_body={"structured_outputs": bomb})
            while not request.done():
                assert http.get("/health", timeout=10).status_code == 200
                alive += 1
            with pytest.raises(openai.BadRequestError, match="must be a grammar that can be"):
                request.result()
    assert alive > 2
    multiple = Case(cases[0].prompt, 8, {"grammar": {"json_schema": slow["json"]}})
    assert refused_field(client, multiple) == "grammar.json_schema"
    assert client.once(Case(cases[0].prompt, 9, {"grammar": {"regex": "b{3}"}}), "fused").text == (
        "bbb"
    )
