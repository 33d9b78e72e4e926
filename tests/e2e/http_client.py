"""Short calls of the HTTP API through OpenAI's client, and the constants they share."""

from __future__ import annotations

from typing import Any

from openai import OpenAI

PROMPT = "def main():\n    "
MODEL = "verifier"
LONG = 2000


def complete(api: OpenAI, **fields: Any) -> Any:
    body: dict[str, Any] = {"max_tokens": 24, "temperature": 0.8, "seed": 11, **fields}
    return api.completions.create(model=MODEL, **{"prompt": PROMPT, **body})


def complete_chat(api: OpenAI, **fields: Any) -> Any:
    messages = [{"role": "user", "content": "Say something."}]
    body: dict[str, Any] = {"max_tokens": 16, "seed": 11, "messages": messages, **fields}
    return api.chat.completions.create(model=MODEL, **body)
