"""All roles under mutual TLS with API keys: which clients are admitted, and no secrets in logs."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from draftloop.client import Client, ClientTls, Forbidden, Unauthenticated
from draftloop.config import bundled_model
from orchestrator.key_file import KeyEntry, hash_of, new_key
from protos import generation_pb2 as pb
from protos import generation_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from tests.e2e.client import RetryInfo, bad_field
from tests.support.certificates import Authority, Pair
from tests.support.documented import documented_commands
from tests.support.forked import ForkedRole
from tests.support.grpcurl import grpcurl
from tests.support.rich_errors import detail

MODEL = str(bundled_model("drafter"))
START_S = 240.0
CALL_S = 60.0
ALICE, BOB = new_key(), new_key()
KEYS = (
    KeyEntry(name="alice", sha256=hash_of(ALICE), tenant="team-a", max_tokens=16),
    KeyEntry(name="bob", sha256=hash_of(BOB), tenant="team-b", requests_per_minute=2),
)
ASKS_FOR = {
    "/v1/completions": ["prompt"],
    "/v1/chat/completions": ["messages"],
    "/tokenize": ["prompt"],
    "/detokenize": ["tokens"],
}
Code = grpc.StatusCode


class Deployment:
    """Verifier, drafter and orchestrator, with certificates of one authority."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = Authority(folder / "certificates", "ca")
        self.stranger = Authority(folder / "strangers", "stranger")
        self.processes: dict[str, ForkedRole] = {}
        keys = folder / "keys.toml"
        keys.write_text("".join(entry.toml() for entry in KEYS))
        model_flags = ["--model", MODEL, "--dtype", "float32", "--threads", "1"]
        self._begin("verifier", [*model_flags, "--tls-client-ca", str(self.authority.ca)])
        self._begin("drafter", [*model_flags, "--tls-client-ca", str(self.authority.ca)])
        self._wait("verifier")
        self._wait("drafter")
        client_pair = self.authority.pair("orchestrator-client")
        flags = ["--services-tls-ca", str(self.authority.ca), "--api-keys", str(keys)]
        flags += ["--services-tls-certificate", str(client_pair.certificate)]
        flags += ["--services-tls-key", str(client_pair.key), "--tokenizer", MODEL]
        for role in ("verifier", "drafter"):
            port = self.processes[role].address.rpartition(":")[2]
            flags += [f"--{role}s", f"dns:///localhost:{port}"]
        self._http_address = folder / "http.address"
        flags += ["--http-listen", "127.0.0.1:0", "--http-address-file", str(self._http_address)]
        self._begin("orchestrator", flags)
        self._wait("orchestrator")

    def _begin(self, role: str, flags: list[str]) -> None:
        pair = self.authority.pair(role)
        tls = ["--tls-certificate", str(pair.certificate), "--tls-key", str(pair.key)]
        command = ["--listen", "127.0.0.1:0", *tls, *flags]
        self.processes[role] = ForkedRole(role, command, self._folder)
        self.processes[role].start()

    def _wait(self, role: str) -> None:
        self.processes[role].wait_until_ready(time.monotonic() + START_S)

    @contextmanager
    def channel(
        self, role: str, authority: Authority | None = None, client_pair: Pair | None = None
    ) -> Iterator[grpc.Channel]:
        """A client's channel; by default it trusts our authority and shows no certificate."""
        credentials = grpc.ssl_channel_credentials(
            (authority or self.authority).ca.read_bytes(),
            client_pair.key.read_bytes() if client_pair else None,
            client_pair.certificate.read_bytes() if client_pair else None,
        )
        with grpc.secure_channel(self.processes[role].address, credentials) as channel:
            yield channel

    def http(self, key: str | None = None, authority: Authority | None = None) -> httpx.Client:
        """A client of the HTTP API."""
        trusted = ssl.create_default_context(cafile=(authority or self.authority).ca)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        address = f"https://{self._http_address.read_text()}"
        return httpx.Client(base_url=address, verify=trusted, headers=headers, timeout=CALL_S)

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.stop()


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with ExitStack() as stack:
        started = Deployment(tmp_path_factory.mktemp("secure"))
        stack.callback(started.stop)
        yield started


def ask(deployment: Deployment, key: str | None, **fields: Any) -> pb.GenerateOnceResponse:
    fields.setdefault("max_tokens", 8)
    request = pb.GenerateOnceRequest(parameters=pb.GenerationParameters(text="def a():", **fields))
    metadata = [("authorization", f"Bearer {key}")] if key else []
    with deployment.channel("orchestrator") as channel:
        stub = generation_pb2_grpc.GenerationStub(channel)
        answer: pb.GenerateOnceResponse = stub.GenerateOnce(
            request, timeout=CALL_S, metadata=metadata, wait_for_ready=True
        )
    return answer


def refusal_of(deployment: Deployment, key: str | None, **fields: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        ask(deployment, key, **fields)
    return caught.value


def test_request_passes_all_roles(deployment: Deployment) -> None:
    waits = pb.SpeculationParameters(strategy="speculative", max_draft_tokens=4)
    answer = ask(deployment, ALICE, speculation=waits)
    assert answer.summary.output_tokens == 8
    assert answer.summary.speculation.draft_tokens > 0


def test_verifier_refuses_clients_without_a_certificate_of_its_authority(
    deployment: Deployment,
) -> None:
    trusted, untrusted = deployment.authority.pair("guest"), deployment.stranger.pair("guest")

    def answers(authority: Authority, client_pair: Pair | None) -> bool:
        with deployment.channel("verifier", authority, client_pair) as channel:
            stub = verifier_pb2_grpc.VerifierStub(channel)
            try:
                stub.Info(verifier_pb2.VerifierInfoRequest(), timeout=CALL_S)
            except grpc.RpcError as error:
                assert error.code() is Code.UNAVAILABLE
                return False
            return True

    assert answers(deployment.authority, trusted)
    assert not answers(deployment.authority, None)
    assert not answers(deployment.authority, untrusted)
    assert not answers(deployment.stranger, trusted)


def test_missing_or_wrong_key_is_unauthenticated(deployment: Deployment) -> None:
    for key in (None, new_key(), ALICE[:-1]):
        error = refusal_of(deployment, key)
        assert error.code() is Code.UNAUTHENTICATED and "api key" in error.details()
    with deployment.channel("orchestrator") as channel:
        stub = generation_pb2_grpc.GenerationStub(channel)
        for call, request in (
            (stub.Info, pb.GenerationInfoRequest()),
            (stub.Tokenize, pb.TokenizeRequest(text="a")),
            (stub.Detokenize, pb.DetokenizeRequest(token_ids=[1])),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call(request, timeout=CALL_S)
            assert caught.value.code() is Code.UNAUTHENTICATED


def test_key_is_restricted_to_its_tenant_and_limits(deployment: Deployment) -> None:
    error = refusal_of(deployment, ALICE, tenant="team-b")
    assert error.code() is Code.PERMISSION_DENIED and "team-a" in error.details()
    error = refusal_of(deployment, ALICE, max_tokens=17)
    assert error.code() is Code.INVALID_ARGUMENT and bad_field(error) == "max_tokens"
    for _ in range(2):
        ask(deployment, BOB, tenant="team-b")
    error = refusal_of(deployment, BOB)
    assert error.code() is Code.RESOURCE_EXHAUSTED
    wait = detail(error, RetryInfo).retry_delay
    assert 0 < wait.seconds + wait.nanos / 1e9 <= 30
    ask(deployment, ALICE)


def test_logs_contain_no_secrets(deployment: Deployment) -> None:
    ask(deployment, ALICE)
    log = deployment.processes["orchestrator"].log_file.read_text(errors="replace")
    assert '"api_key": "alice"' in log
    for secret in (ALICE, BOB, *(entry.sha256 for entry in KEYS)):
        assert secret not in log


def test_http_is_encrypted_and_requires_the_same_keys(deployment: Deployment) -> None:
    body = {"prompt": "def a():", "max_tokens": 4}
    with deployment.http(ALICE) as client:
        answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        forbidden = client.post("/v1/completions", json=body, headers={"x-tenant": "team-b"})
        assert (forbidden.status_code, forbidden.json()["error"]["code"]) == (403, "forbidden")
        long = client.post("/v1/completions", json={**body, "max_tokens": 17})
        assert "must be at most 16, the api key's limit" in long.json()["error"]["message"]
    with deployment.http() as client:
        for path in ("/v1/models", "/v1/models/x", "/nowhere", "/playgrounds"):
            assert client.get(path).status_code == 401
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
            values = {"prompt": "a", "tokens": [1], "messages": [{"role": "user", "content": "a"}]}
            fields = {name: values[name] for name in ASKS_FOR[path]}
            refusal = client.post(path, json=fields)
            assert refusal.status_code == 401, refusal.text
            assert refusal.json()["error"]["code"] == "invalid_api_key"
            assert refusal.headers["www-authenticate"] == "Bearer"
        for path in (
            "/health",
            "/ready",
            "/version",
            "/metrics",
            "/openapi.json",
            "/playground/",
            "/favicon.ico",
        ):
            assert client.get(path).status_code == 200
    with (
        deployment.http(authority=deployment.stranger) as client,
        pytest.raises(httpx.ConnectError),
    ):
        client.get("/health")


def test_rate_limited_key_gets_a_retry_hint_over_http(
    deployment: Deployment,
) -> None:
    with deployment.http(BOB) as client:
        answers = [
            client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}) for _ in range(3)
        ]
    assert answers[-1].status_code == 429
    assert int(answers[-1].headers["retry-after"]) >= 1


def test_python_client_uses_tls_and_its_key(deployment: Deployment) -> None:
    address = deployment.processes["orchestrator"].address
    tls = ClientTls(ca=deployment.authority.ca)
    with Client(address, api_key=ALICE, tls=tls, timeout=CALL_S) as client:
        assert len(client.generate("def a():", max_tokens=4).token_ids) == 4
        with pytest.raises(Forbidden, match="tenant"):
            client.generate("def a():", max_tokens=4, tenant="team-b")
    unknown = Client(address, api_key=new_key(), tls=tls, timeout=CALL_S)
    with unknown as client, pytest.raises(Unauthenticated):
        client.info()


def test_documented_call_with_a_key(deployment: Deployment) -> None:
    (command,) = (
        command for command in documented_commands()
        if command.words[0] == "grpcurl" and "-cacert" in command.words
    )  # fmt: skip
    address = deployment.processes["orchestrator"].address
    folder = deployment.authority.ca.parent
    assert '"summary"' in grpcurl(command.words[1:], folder, address, ALICE)[-1]
