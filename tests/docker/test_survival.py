"""Containers die while a request runs; that never costs a token."""

from __future__ import annotations

import grpc
import pytest

from draftloop.speculation import FUSED, SPECULATIVE
from protos.generation_pb2 import SpeculationFigures
from tests.docker.generation import Running
from tests.docker.project import Project

DRAFT_TOKENS = 4


def generation_with_drafter(address: str) -> Running:
    """A generation that asks a drafter in every round."""
    return Running(address, max_draft_tokens=DRAFT_TOKENS)


@pytest.mark.parametrize("service", ["redis", "drafter", "verifier"])
def test_verifier_crash_costs_no_token(
    project: Project, address: str, expected: list[int], service: str
) -> None:
    """The request waits for the only verifier's restart, and goes on in a reopened session."""
    [container] = project.containers(service)
    before = project.starts(container)
    strategy = FUSED if service == "redis" else SPECULATIVE
    with Running(address, strategy, DRAFT_TOKENS) as running:
        running.wait_until_under_way()
        project.crash(container)
        assert running.wait_for_tokens() == expected
    assert running.summary.speculation.draft_forwards > 0
    assert running.summary.speculation.fallback_rounds >= (service == "drafter")
    assert running.summary.speculation.reopened_sessions >= (service == "verifier")
    project.wait_until_healthy(container, after_starts=before + 1)
    with Running(address) as restarted:
        assert restarted.wait_for_tokens() == expected


def test_orchestrator_crash_loses_only_its_streams(
    project: Project, address: str, expected: list[int]
) -> None:
    [container] = project.containers("orchestrator")
    before = project.starts(container)
    with Running(address) as running:
        running.wait_until_under_way()
        project.crash(container)
        assert running.wait_for_error() is grpc.StatusCode.UNAVAILABLE
    assert running.token_ids == expected[: len(running.token_ids)]
    project.wait_until_healthy(container, after_starts=before + 1)
    with Running(address) as restarted:
        assert restarted.wait_for_tokens() == expected


def test_disconnected_redis_costs_no_token(
    project: Project, address: str, expected: list[int]
) -> None:
    [container] = project.containers("redis")
    with Running(address, FUSED) as running:
        running.wait_until_under_way()
        project.disconnect(container, ["phrases"])
        try:
            assert running.wait_for_tokens() == expected
            with Running(address, FUSED) as disconnected:
                assert disconnected.wait_for_tokens() == expected
        finally:
            project.connect(container, "redis", ["phrases"])
    with Running(address, FUSED) as reconnected:
        assert reconnected.wait_for_tokens() == expected


def figures_with_killed_drafter(
    project: Project, address: str, expected: list[int], container: str
) -> list[SpeculationFigures]:
    """Figures of two generations during which a drafter was killed; nothing restarts it.

    On a busy machine the kill may take longer than the generations; then it is done again.
    """
    for _ in range(5):
        project.wait_until_known("drafter", 2)
        with generation_with_drafter(address) as first, generation_with_drafter(address) as second:
            first.wait_until_under_way()
            second.wait_until_under_way()
            project.engine.run("docker", "kill", container)
            in_time = not (first.has_ended or second.has_ended)
            assert first.wait_for_tokens() == second.wait_for_tokens() == expected
        if in_time:
            return [running.summary.speculation for running in (first, second)]
        project.engine.run("docker", "start", container)
        project.wait_until_healthy(container)
    raise AssertionError("all generations ended before their drafter was killed")


def test_one_of_two_drafters_dies(project: Project, address: str, expected: list[int]) -> None:
    """Two requests on two drafters: whichever drafter dies, the other one drafts for both."""
    project.up(drafter=2)
    for container in project.containers("drafter"):
        figures = figures_with_killed_drafter(project, address, expected, container)
        assert all(each.draft_forwards for each in figures)
        assert any(each.fallback_rounds for each in figures)
        with generation_with_drafter(address) as third:
            assert third.wait_for_tokens() == expected
        assert third.summary.speculation.draft_forwards > 0
        project.engine.run("docker", "start", container)
        project.wait_until_healthy(container)
    project.up(drafter=1)


def test_one_of_two_verifiers_dies(project: Project, address: str, expected: list[int]) -> None:
    """Two requests on two verifiers: the request of the killed one continues on the other."""
    project.up(verifier=2)
    victim = project.containers("verifier")[-1]
    with Running(address) as first, Running(address) as second:
        first.wait_until_under_way()
        second.wait_until_under_way()
        project.engine.run("docker", "kill", victim)
        assert first.wait_for_tokens() == second.wait_for_tokens() == expected
    reopened = [running.summary.speculation.reopened_sessions for running in (first, second)]
    assert sum(reopened) == 1
    project.up(verifier=1)
