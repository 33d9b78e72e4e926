"""A server with OpenAI's completions API as a measured system, whoever made it."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.workload import Case
from draftloop.errors import StartupFailure

# Fields beyond OpenAI's, by which vLLM, SGLang, llama.cpp and Draftloop sample from the whole
# distribution and continue past an end-of-text token.
WHOLE_DISTRIBUTION = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "ignore_eos": True}
TIMEOUT_S = 600
EVENT = "data: "
END = "[DONE]"


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer as its client saw it; times in seconds since the request."""

    text: str
    tokens: int
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A running server under the name that tables give it.

    `fields` are added to each request, and replace those that every server gets.
    """

    name: str
    url: str
    fields: dict[str, Any] = field(default_factory=dict)

    async def model(self, client: httpx.AsyncClient) -> str:
        """The first model that it lists. Raises StartupFailure if it does not answer so."""
        try:
            answer = await client.get(f"{self.url}/v1/models")
            answer.raise_for_status()
            return str(answer.json()["data"][0]["id"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise StartupFailure(f"{self.name}: {self.url} lists no model: {error}") from None

    async def complete(self, client: httpx.AsyncClient, model: str, case: Case) -> Answer:
        """Continues a case's prompt. Raises StartupFailure if the server refuses or breaks off."""
        body = {
            "model": model,
            "prompt": list(case.prompt.token_ids),
            "max_tokens": case.tokens,
            "temperature": case.temperature,
            "seed": case.seed,
            "stream": True,
            **WHOLE_DISTRIBUTION,
            **self.fields,
        }
        texts: list[str] = []
        moments: list[float] = []
        began = time.perf_counter()
        try:
            async with client.stream("POST", f"{self.url}/v1/completions", json=body) as answer:
                if answer.is_error:
                    refusal = (await answer.aread()).decode(errors="replace")
                    raise StartupFailure(f"{self.name}: {answer.status_code}: {refusal[:500]}")
                async for line in answer.aiter_lines():
                    if line.startswith(EVENT) and line != f"{EVENT}{END}":
                        texts.append(self._text_of(line.removeprefix(EVENT)))
                        moments.append(time.perf_counter() - began)
        except httpx.HTTPError as error:
            raise StartupFailure(f"{self.name}: the answer broke off: {error!r}") from None
        if len(moments) < 2:
            raise StartupFailure(f"{self.name}: the answer was not streamed")
        return Answer("".join(texts), case.tokens, moments[0], moments[-1])

    def _text_of(self, event: str) -> str:
        content = json.loads(event)
        if content.get("error"):
            raise StartupFailure(f"{self.name}: the answer broke off: {content['error']}")
        choices: Sequence[dict[str, Any]] = content.get("choices") or [{}]
        return str(choices[0].get("text") or "")


def read_server(text: str) -> HttpServer:
    """For argparse: reads `NAME=URL` or `NAME=URL {"field": "value"}`."""
    name, _, rest = text.partition("=")
    url, _, extra = rest.partition(" ")
    try:
        fields = json.loads(extra) if extra.strip() else {}
    except ValueError:
        fields = None
    if not name or not url.startswith(("http://", "https://")) or not isinstance(fields, dict):
        rule = 'must be NAME=URL or NAME=URL {"field": "value"}, with http:// or https://'
        raise argparse.ArgumentTypeError(f"{rule}; got {text!r}")
    return HttpServer(name, url.rstrip("/").removesuffix("/v1"), fields)
