"""Observability: metrics of every role, one trace through all roles, and log lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from draftloop.config import bundled_model
from orchestrator.launcher import Stack
from orchestrator.stack_config import StackConfig
from protos import generation_pb2 as pb
from tests.e2e.client import Case, Client, held_out_prompts
from tests.support.collector import Collector
from tests.support.forked import ForkedStack
from tests.support.ports import quiet_port
from tests.support.waiting import until

ROLES = ("orchestrator", "drafter", "verifier")
TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACED = (("traceparent", f"00-{TRACE_ID}-{PARENT_ID}-01"),)
SECRET = "tenant-whose-name-nobody-may-see"
HANDLED = "draftloop_grpc_server_handled_total"
METHODS = {"orchestrator": "GenerateOnce", "drafter": "Draft", "verifier": "Verify"}

Samples = dict[tuple[str, tuple[str, ...]], float]


@dataclass(frozen=True)
class Watched:
    """A stack with metrics, traces and debug logs."""

    stack: Stack
    client: Client
    collector: Collector
    ports: dict[str, int]

    def page(self, role: str) -> str:
        return httpx.get(f"http://127.0.0.1:{self.ports[role]}/metrics", timeout=30).text

    def metrics(self, role: str) -> Samples:
        """Every sample by its name and its label values, in the order of the labels' names."""
        return {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(self.page(role))
            for sample in family.samples
        }

    def lines(self, role: str) -> list[dict[str, Any]]:
        text = self.stack.processes[role].log_file.read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    """The smallest stack with metrics, traces and debug logs on."""
    ports = {role: quiet_port() for role in ROLES}
    with Collector() as collector, pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        flags = {
            f"{role}_flags": (
                *("--metrics-listen", f"127.0.0.1:{port}", "--log-level", "debug"),
                *("--trace-endpoint", collector.endpoint),
            )
            for role, port in ports.items()
        }
        config = StackConfig(
            port=0,
            http_port=None,
            drafter_port=0,
            verifier_port=0,
            dtype="float32",
            start_timeout_s=240,
            target=bundled_model("drafter"),
            **flags,
        )
        with ForkedStack(config) as stack:
            client = Client(stack.address)
            yield Watched(stack, client, collector, ports)
            client.channel.close()


@pytest.fixture(scope="module")
def answer(watched: Watched) -> pb.GenerateOnceResponse:
    """One request that drafts from its first round on and belongs to its client's trace."""
    case = Case(held_out_prompts(1, longest=48)[0], 24)
    parameters = case.parameters("speculative", max_draft_tokens=4, tenant=SECRET)
    answer: pb.GenerateOnceResponse = watched.client.stub.GenerateOnce(
        pb.GenerateOnceRequest(parameters=parameters), timeout=120, metadata=TRACED
    )
    return answer


@pytest.fixture(scope="module", autouse=True)
def pages(watched: Watched, answer: pb.GenerateOnceResponse) -> dict[str, Samples]:
    """The metrics of every role after that request, read before any test sends another one.

    Services count after they answer, and while a page is read.
    """
    return {role: settled_metrics(watched, role) for role in ROLES}


def settled_metrics(watched: Watched, role: str) -> Samples:
    """The role's metrics once the call has ended, its slot is free and the forwards are counted."""
    samples: list[Samples] = []

    def has_ended() -> bool:
        samples.append(watched.metrics(role))
        handled = samples[-1].get((HANDLED, ("OK", METHODS[role]))) == 1
        cache_usage = samples[-1].get(("draftloop_kv_cache_usage_perc", ()), 0)
        return handled and not cache_usage and forwards(samples[-1])[0] == forwards(samples[-1])[1]

    until(has_ended, 60)
    return samples[-1]


def forwards(samples: Samples) -> tuple[tuple[float, float], tuple[float, float]]:
    """Numbers of forward passes and tokens, as two families of metrics count them."""
    computed = sum(
        v for (name, _), v in samples.items() if name == "draftloop_forward_tokens_total"
    )
    timed = samples.get(("draftloop_forward_time_seconds_count", ()), 0)
    iterations, tokens = (
        samples.get((f"draftloop_iteration_tokens_{name}", ()), 0) for name in ("count", "sum")
    )
    return (timed, computed), (iterations, tokens)


def test_one_trace_spans_all_roles(watched: Watched, answer: pb.GenerateOnceResponse) -> None:
    """A span per round in every role, within the client's own trace."""
    rounds = answer.summary.speculation.rounds

    def has_ended() -> bool:
        names = [span.name for span in watched.collector.spans(TRACE_ID)]
        return {"request", "drafter.session", "verifier.session"} <= set(names)

    until(has_ended, 60)
    spans = watched.collector.spans(TRACE_ID)
    by_name = {name: [s for s in spans if s.name == name] for name in {s.name for s in spans}}
    [request] = by_name["request"]
    assert {span.service for span in spans} == {f"draftloop-{role}" for role in ROLES}
    assert not any(span.failed for span in spans)
    assert request.parent_id == PARENT_ID
    assert len(by_name["round"]) == len(by_name["draft"]) == len(by_name["verify"]) == rounds
    in_rounds = {span.parent_id for span in (*by_name["draft"], *by_name["verify"])}
    assert in_rounds == {span.span_id for span in by_name["round"]}
    for role, most in (("verifier", rounds + 1), ("drafter", rounds)):
        [session] = by_name[f"{role}.session"]
        assert session.parent_id == request.span_id
        parts = by_name[f"{role}.round"]
        assert 0 < len(parts) <= most
        assert {span.parent_id for span in parts} == {session.span_id}
        assert sum(span.attributes["draftloop.forward_ns"] for span in parts) > 0
    assert len(by_name["verifier.round"]) == rounds + 1


def test_every_role_counts_the_request(
    pages: dict[str, Samples], answer: pb.GenerateOnceResponse
) -> None:
    summary = answer.summary
    figures = summary.speculation
    samples = pages["orchestrator"]
    assert samples["draftloop_request_success_total", ("length",)] == 1
    assert samples["draftloop_prompt_tokens_total", ()] == summary.prompt_tokens
    assert samples["draftloop_generation_tokens_total", ()] == len(answer.token_ids)
    assert samples["draftloop_time_to_first_token_seconds_count", ()] == 1
    assert samples["draftloop_inter_token_latency_seconds_count", ()] == len(answer.token_ids) - 1
    for name, count in (("draft", figures.draft_tokens), ("accepted", figures.accepted_tokens)):
        total = f"draftloop_spec_decode_num_{name}_tokens_total"
        assert samples[total, ("speculative",)] == count > 0
        by_source = f"draftloop_{name}_tokens_by_source_total"
        assert sum(value for (key, _), value in samples.items() if key == by_source) == count
    first, *_ = figures.accepted_tokens_per_position
    assert samples["draftloop_spec_decode_num_accepted_tokens_per_pos_total", ("0",)] == first
    assert samples["draftloop_round_tokens_count", ("speculative",)] == figures.rounds
    hops = {k[1][0]: v for k, v in samples.items() if k[0] == "draftloop_round_hop_seconds_total"}
    assert sum(hops.values()) == pytest.approx(samples["draftloop_round_time_seconds_sum", ()])
    assert hops["verify"] > 0 and hops["draft"] > 0
    assert samples["draftloop_replicas", ("verifier", "ready")] == 1
    assert samples["draftloop_num_requests_running", ()] == 0


@pytest.mark.parametrize("role", ["drafter", "verifier"])
def test_model_services_report_sessions_and_forwards(
    pages: dict[str, Samples], answer: pb.GenerateOnceResponse, role: str
) -> None:
    samples = pages[role]
    assert samples["draftloop_num_sessions_running", ()] == 0
    assert samples["draftloop_prefill_tokens_total", ()] == answer.summary.prompt_tokens
    assert all(forwards(samples)[0]) and forwards(samples)[0] == forwards(samples)[1]
    assert samples["draftloop_kv_cache_usage_perc", ()] == 0
    assert any(name == "draftloop_forward_cost_seconds" for name, _ in samples)
    assert samples[HANDLED, ("OK", METHODS[role])] == 1


def test_failed_and_cancelled_requests_are_counted(
    watched: Watched, answer: pb.GenerateOnceResponse
) -> None:
    invalid = Case((1, 2), 4, {"temperature": -1.0})
    with pytest.raises(grpc.RpcError):
        watched.client.once(invalid, "speculative")
    case = Case(held_out_prompts(1, longest=48)[0], 400)
    call = watched.client.stub.Generate(
        pb.GenerateRequest(parameters=case.parameters("autoregressive")), timeout=120
    )
    next(call)
    call.cancel()
    # The samples of a page are not of one moment, so the test waits for all figures.
    expected = {
        ("draftloop_request_failure_total", ("invalid_input",)): 1,
        ("draftloop_request_success_total", ("abort",)): 1,
        ("draftloop_num_requests_running", ()): 0,
        ("draftloop_num_requests_waiting", ()): 0,
        (HANDLED, ("INVALID_ARGUMENT", "GenerateOnce")): 1,
        (HANDLED, ("CANCELLED", "Generate")): 1,
    }
    until(lambda: expected.items() <= watched.metrics("orchestrator").items(), 60)


def test_log_lines_name_the_request_in_every_role(
    watched: Watched, answer: pb.GenerateOnceResponse
) -> None:
    request_id = answer.summary.request_id
    for role in ROLES:
        own = [line for line in watched.lines(role) if line.get("request_id") == request_id]
        sessions: set[Any] = {line.get("session_id") for line in own}
        if role == "orchestrator":
            assert sessions == {None}
        else:
            [session] = sessions
            assert re.fullmatch(re.escape(request_id) + r"\.\d+", session)
        assert {line["role"] for line in own} == {role}
    [end] = [line for line in watched.lines("orchestrator") if line["event"] == "generated"][:1]
    assert end["outcome"] == "length" and end["output_tokens"] == len(answer.token_ids)


def test_metrics_logs_and_traces_contain_no_client_data(
    watched: Watched, answer: pb.GenerateOnceResponse
) -> None:
    """No request ids or tenants in metric labels; no output text in logs or traces."""
    text = answer.text.strip()
    for role in ROLES:
        assert answer.summary.request_id not in watched.page(role)
        assert SECRET not in watched.page(role)
        logged = watched.stack.processes[role].log_file.read_text()
        assert json.dumps(text)[1:-1] not in logged and text not in logged
    attributes = str([span.attributes for span in watched.collector.spans(TRACE_ID)])
    assert SECRET not in attributes and repr(text)[1:-1] not in attributes
