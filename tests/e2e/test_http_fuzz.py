"""Generated requests, valid and invalid, get only the expected statuses and well-formed errors.

They come from the server's own OpenAPI document.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.result import Ok

# A generated request may be valid and be served, or its time limit may end it.
FORESEEN = {200, 400, 404, 405, 413, 429, 503, 504}
FEW = settings(
    max_examples=15, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much,
                           HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)  # fmt: skip
MESSAGES = ("/v1/messages", "/v1/messages/count_tokens")
HEADERS = {"X-Request-Timeout": "5"}


@pytest.fixture(scope="module")
def operations(base: str) -> list[Any]:
    """All operations of the server's own OpenAPI document."""
    schema = schemathesis.openapi.from_url(f"{base}/openapi.json")
    results = list(schema.get_all_operations())
    described = [operation.ok() for operation in results if isinstance(operation, Ok)]
    assert len(described) == len(results) >= 10
    return described


def assert_expected_answer(answer: Any, path: str) -> None:
    assert answer.status_code in FORESEEN, answer.text
    if answer.status_code >= 400:
        error = json.loads(answer.content)["error"]
        fields = {"message", "type"} | (set() if path in MESSAGES else {"param", "code"})
        assert set(error) == fields and error["message"]


@FEW
@given(st.data())
def test_requests_generated_from_the_openapi_document(
    operations: list[Any], data: st.DataObject
) -> None:
    operation = data.draw(st.sampled_from(operations))
    mode = data.draw(st.sampled_from(list(GenerationMode)))
    case = data.draw(operation.as_strategy(generation_mode=mode))
    if isinstance(case.body, dict) and isinstance(case.body.get("max_tokens"), int):
        case.body["max_tokens"] = min(case.body["max_tokens"], 2)
    assert_expected_answer(case.call(headers=HEADERS), operation.path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["prompt", "messages", "n", "stop", "seed", "logit_bias", "logprobs", "stream", "speculative",
     "prediction", "temperature", "top_k", "stop_token_ids", "stream_options", "tools", "model",
     "response_format", "structured_outputs", "metadata", "user", "max_tokens", "system",
     "stop_sequences", "thinking", "tool_choice", "output_config"]
)  # fmt: skip
CHATS = ("/v1/chat/completions", *MESSAGES)


@FEW
@given(st.sampled_from(["/v1/completions", *CHATS, "/tokenize", "/detokenize"]),
       st.dictionaries(FIELDS, JSON, max_size=3))  # fmt: skip
def test_known_fields_with_arbitrary_values(http: httpx.Client, path: str, changes: Any) -> None:
    valid = {"prompt": "x", "max_tokens": 1} if path not in CHATS else {
        "messages": [{"role": "user", "content": "x"}], "max_tokens": 1,
    }  # fmt: skip
    body = json.dumps({**valid, **changes})
    answer = http.post(path, content=body, headers={**HEADERS, "Content-Type": "application/json"})
    assert_expected_answer(answer, path)
