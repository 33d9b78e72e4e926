"""`docker compose up` on a fresh machine: services, reachability, restricted rights."""

from __future__ import annotations

import openai
import pytest

from draftloop.speculation import FUSED
from tests.docker.generation import PATIENCE_S, Running
from tests.docker.project import ROLES, SERVICES, Project


@pytest.mark.parametrize("service", SERVICES)
def test_containers_have_restricted_rights(project: Project, service: str) -> None:
    [container] = project.containers(service)
    details = project.engine.inspect(container)
    host = details["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["Memory"] > 0
    assert host["NanoCpus"] > 0
    assert host["PidsLimit"] == 512
    assert details["Config"]["User"].split(":")[0] not in ("", "0", "root")


def test_only_the_orchestrator_is_published_and_only_on_loopback(project: Project) -> None:
    published = {
        service: project.engine.inspect(container)["HostConfig"]["PortBindings"] or {}
        for service in SERVICES
        for container in project.containers(service)
    }
    assert [service for service, ports in published.items() if ports] == ["orchestrator"]
    hosts = {binding["HostIp"] for ports in published["orchestrator"].values() for binding in ports}
    assert hosts == {"127.0.0.1"}


def test_verifier_cannot_reach_redis(project: Project) -> None:
    [verifier] = project.containers("verifier")
    code = (
        "import socket\ntry: socket.getaddrinfo('redis', 6379)\n"
        "except OSError: print('unknown')\nelse: print('known')"
    )
    assert project.engine.run("docker", "exec", verifier, "python", "-c", code).strip() == "unknown"


def test_containers_write_no_files_into_the_application(project: Project) -> None:
    changed = [
        line
        for role in ROLES
        for container in project.containers(role)
        for line in project.engine.run("docker", "diff", container).splitlines()
    ]
    assert not [line for line in changed if "/app" in line or "/opt/venv" in line]


def test_generation_over_grpc(address: str, expected: list[int]) -> None:
    with Running(address, FUSED, max_draft_tokens=4) as running:
        assert running.wait_for_tokens() == expected
    assert running.summary.speculation.draft_forwards > 0


def test_generation_over_http(project: Project) -> None:
    """OpenAI's client gets the same text streamed and whole."""
    url = f"http://127.0.0.1:{project.http_port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S) as client:
        [model] = client.models.list().data
        whole = client.completions.create(
            model=model.id, prompt="def main():", max_tokens=64, seed=1, temperature=0.7
        )
        pieces = client.completions.create(
            model=model.id,
            prompt="def main():",
            max_tokens=64,
            seed=1,
            temperature=0.7,
            stream=True,
        )
        assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text != ""


def test_image_contains_the_command_line(project: Project) -> None:
    [orchestrator] = project.containers("orchestrator")
    output = project.engine.run("docker", "exec", orchestrator, "draftloop", "health")
    assert output == "orchestrator at 127.0.0.1:50051: SERVING\n"
