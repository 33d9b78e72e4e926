"""Services report their load, and resume a text only for the same model and format."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from protos import drafter_pb2, verifier_pb2
from protos.drafter_pb2_grpc import DrafterStub
from protos.verifier_pb2_grpc import VerifierStub
from tests.service.conftest import Start
from tests.service.sessions import (
    PROMPT,
    ErrorInfo,
    open_drafter,
    open_verifier,
    propose,
    send_and_read,
    verify,
    wait_until_slots_free,
)
from tests.support.rich_errors import detail

LENGTH = len(PROMPT)


async def test_verifier_answers_report_its_load(serve_verifier: Start) -> None:
    async with serve_verifier(max_sessions=2) as (channel, host):
        stub = VerifierStub(channel)
        idle = (await stub.Info(verifier_pb2.VerifierInfoRequest())).load
        assert (idle.running_sessions, idle.waiting_sessions, idle.answer_ns) == (0, 0, 0)
        first, second, third = (stub.Verify() for _ in range(3))
        assert (await send_and_read(first, open_verifier())).load.running_sessions == 1
        assert (await send_and_read(second, open_verifier())).load.running_sessions == 2
        await third.write(open_verifier())  # has to wait for a slot
        await send_and_read(first, verify(LENGTH + 1))
        while not host.admission.waiting_sessions:
            await asyncio.sleep(0.01)
        load = (await stub.Info(verifier_pb2.VerifierInfoRequest())).load
        assert (load.running_sessions, load.waiting_sessions) == (2, 1)
        assert load.answer_ns > 0
        assert load.forwards >= idle.forwards + 3
        for call in (first, second, third):
            call.cancel()
        await wait_until_slots_free(host)


async def test_drafter_answers_report_its_load(serve_drafter: Start) -> None:
    async with serve_drafter() as (channel, _):
        stub = DrafterStub(channel)
        call = stub.Draft()
        await send_and_read(call, open_drafter())
        load = (await send_and_read(call, propose(LENGTH, nodes=2))).load
        assert load.running_sessions == 1 and load.answer_ns > 0
        info = await stub.Info(drafter_pb2.DrafterInfoRequest())
        assert info.load.running_sessions == 1


async def test_verifier_resumes_a_text_only_of_the_same_model(serve_verifier: Start) -> None:
    async with serve_verifier() as (channel, host):
        own = host.info.model_fingerprint
        call = VerifierStub(channel).Verify()
        assert (await send_and_read(call, open_verifier(model_fingerprint=own))).verdict
        call = VerifierStub(channel).Verify()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send_and_read(call, open_verifier(model_fingerprint="feedc0de"))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert detail(refused.value, ErrorInfo).reason == "MISMATCH"
        assert own in refused.value.details() and "feedc0de" in refused.value.details()


async def test_verifier_does_not_resume_a_text_of_another_format(serve_verifier: Start) -> None:
    """A verifier restarted in another format used to resume texts until discovery asked it."""
    async with serve_verifier(quantization="w8a8") as (channel, _):
        served: dict[str, Any] = {"dtype": "float32", "quantization": "w8a8"}
        for fields in ({}, served):
            assert (
                await send_and_read(VerifierStub(channel).Verify(), open_verifier(**fields))
            ).verdict
        for changed in ({"dtype": "bfloat16"}, {"quantization": ""}, {"quantization": "int8"}):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await send_and_read(
                    VerifierStub(channel).Verify(), open_verifier(**{**served, **changed})
                )
            assert detail(refused.value, ErrorInfo).reason == "MISMATCH"
            [name] = changed
            assert f"{name}: must be {served[name]}" in refused.value.details()
