"""Errors about too long prompts use words that agents recognise, to shorten the prompt."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.gateway import gateway

LONG = "x " * 4000
CHAT = {"messages": [{"role": "user", "content": LONG}]}
# Claude Code matches this text and reads the numbers of tokens; LiteLLM also matches only words.
CLAUDE_CODES = re.compile(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", re.IGNORECASE)
LITELLMS = "this model's maximum context length is 2048 tokens"


@pytest.mark.parametrize(("path", "field", "body"), [
    ("/v1/completions", "prompt", {"prompt": LONG}),
    ("/v1/chat/completions", "messages", CHAT),
    ("/v1/responses", "input", {"input": LONG}),
    ("/v1/messages", "messages", CHAT),
])  # fmt: skip
async def test_too_long_prompt_error_is_recognized_by_clients(
    path: str, field: str, body: dict[str, Any]
) -> None:
    async with gateway() as (client, _):
        answer = await client.post(path, json=body)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message.startswith(f"{field}: ")
    counted = CLAUDE_CODES.search(message)
    assert counted is not None and int(counted[1]) > int(counted[2]) == 2047
    assert LITELLMS in message
