"""What the end-to-end tests say to the HTTP API, and how they look behind it."""

from __future__ import annotations

import time
from typing import Any

import grpc
import pytest
from openai import OpenAI

from orchestrator.launcher import Stack
from protos import verifier_pb2, verifier_pb2_grpc

PROMPT = "def main():\n    "
MODEL = "verifier"
LONG = 2000


def complete(api: OpenAI, **said: Any) -> Any:
    chosen: dict[str, Any] = {"max_tokens": 24, "temperature": 0.8, "seed": 11, **said}
    return api.completions.create(model=MODEL, **{"prompt": PROMPT, **chosen})


def talk(api: OpenAI, **said: Any) -> Any:
    messages = [{"role": "user", "content": "Say something."}]
    chosen: dict[str, Any] = {"max_tokens": 16, "seed": 11, "messages": messages, **said}
    return api.chat.completions.create(model=MODEL, **chosen)


def open_sessions(stack: Stack) -> int:
    with grpc.insecure_channel(stack.processes["verifier"].address) as channel:
        stub = verifier_pb2_grpc.VerifierStub(channel)
        return int(stub.Info(verifier_pb2.VerifierInfoRequest()).load.running_sessions)


def wait_until_free(stack: Stack) -> None:
    for _ in range(200):
        if not open_sessions(stack):
            return
        time.sleep(0.05)
    pytest.fail("the verifier still holds a session")
