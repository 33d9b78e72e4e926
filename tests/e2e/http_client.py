"""Short calls of the HTTP API through OpenAI's client, and the constants they share."""

from __future__ import annotations

from typing import Any

from openai import OpenAI

PROMPT = "def main():\n    "
MODEL = "verifier"
LONG = 2000


def complete(api: OpenAI, **said: Any) -> Any:
    chosen: dict[str, Any] = {"max_tokens": 24, "temperature": 0.8, "seed": 11, **said}
    return api.completions.create(model=MODEL, **{"prompt": PROMPT, **chosen})


def complete_chat(api: OpenAI, **said: Any) -> Any:
    messages = [{"role": "user", "content": "Say something."}]
    chosen: dict[str, Any] = {"max_tokens": 16, "seed": 11, "messages": messages, **said}
    return api.chat.completions.create(model=MODEL, **chosen)
