"""Redis URLs and settings that hold one: all forms, clear errors, and no secret shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from draftloop.config import explain, settings_config
from draftloop.errors import InvalidInput, StartupFailure
from orchestrator.config import OrchestratorSettings
from phrase_store.config import PhraseSettings
from phrase_store.log import check_url, check_usable
from phrase_store.redis_url import RedisAddress, Topology, masked, parse
from tests.support.certificates import Authority

SECRET = "s3cr3t"


def tcp_address(**fields: Any) -> RedisAddress:
    return RedisAddress(**{"topology": Topology.SERVER, "hosts": (("h", 6379),), **fields})


VERIFIED = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
UNVERIFIED = {"ssl_cert_reqs": "none", "ssl_check_hostname": False}


@pytest.mark.parametrize(
    "url, address",
    [
        ("redis://h", tcp_address()),
        ("REDIS://h", tcp_address()),
        ("redis://h:7000/3", tcp_address(hosts=(("h", 7000),), database=3)),
        ("redis://[::1]:7000", tcp_address(hosts=(("::1", 7000),))),
        ("redis://[::1]", tcp_address(hosts=(("::1", 6379),))),
        ("redis://u:p@h", tcp_address(username="u", password="p")),
        ("redis://:p@h", tcp_address(password="p")),
        ("redis://u%40x:p%2F%40%3A@h", tcp_address(username="u@x", password="p/@:")),
        ("rediss://h", tcp_address(tls=VERIFIED)),
        ("rediss://h?ssl_cert_reqs=none", tcp_address(tls=UNVERIFIED)),
        (
            "rediss://h?ssl_ca_certs=%2Fca.pem&ssl_check_hostname=false",
            tcp_address(tls={**VERIFIED, "ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False}),
        ),
        ("unix:///run/r.sock", RedisAddress(topology=Topology.SOCKET, path="/run/r.sock")),
        (
            "unix://u:p@/run/r.sock?db=2",
            RedisAddress(topology=Topology.SOCKET, path="/run/r.sock", database=2,
                         username="u", password="p"),
        ),
        (
            "redis+cluster://u:p@a:1,b",
            RedisAddress(topology=Topology.CLUSTER, hosts=(("a", 1), ("b", 6379)),
                         username="u", password="p"),
        ),
        (
            "redis+sentinel://a,b:1/main/4?sentinel_username=su&sentinel_password=sp",
            RedisAddress(topology=Topology.SENTINEL, hosts=(("a", 26379), ("b", 1)),
                         master="main", database=4,
                         sentinel_username="su", sentinel_password="sp"),
        ),
        (
            "rediss+cluster://a",
            RedisAddress(topology=Topology.CLUSTER, hosts=(("a", 6379),), tls=VERIFIED),
        ),
        (
            "rediss+sentinel://a/m",
            RedisAddress(topology=Topology.SENTINEL, hosts=(("a", 26379),), master="m",
                         tls=VERIFIED),
        ),
    ],
)  # fmt: skip
def test_all_url_forms_are_parsed(url: str, address: RedisAddress) -> None:
    assert parse(url) == address
    check_url(url)


@pytest.mark.parametrize(
    "url, rule",
    [
        ("redis://", "must name a host"),
        ("redis://a,b", "must name one host; several need redis+cluster or redis+sentinel"),
        ("redis://h:port", "name:port"),
        ("redis://h:0", "name:port"),
        ("redis://h:65536", "name:port"),
        ("redis://a:b:c", "name:port"),
        ("redis://[::1", "must be a URL"),
        ("redis://h/x", "must have a number as its database"),
        ("redis://h/1/2", "must have a number as its database"),
        ("redis://h#1", "percent-encoded as %23"),
        ("redis://***@h", "must have user:password or :password before the @"),
        ("redis://h?db=1", "must not have parameters"),
        ("rediss://h?ssl=1", "must not have parameters other than ssl_ca_certs"),
        ("redis://h?ssl_ca_certs=x", "must not have parameters"),
        ("rediss://h?ssl_cert_reqs=maybe", "ssl_cert_reqs=required, optional or none"),
        ("rediss://h?ssl_keyfile=x", "must have ssl_certfile together with ssl_keyfile"),
        ("rediss://h?ssl_check_hostname=1", "ssl_check_hostname=true or false"),
        ("redis+cluster://h/1", "must not name a database: a cluster has none"),
        ("redis+sentinel://h", "must name the master"),
        ("redis+sentinel://h/m/x", "must have a number as its database"),
        ("redis+sentinel://h/m?x=1", "other than sentinel_username, sentinel_password"),
        ("unix://run/r.sock", "must have an absolute path"),
        ("unix://", "must have an absolute path"),
        ("unix:///s?db=x", "must have a number as its database"),
        ("unix:///s?x=1", "must not have parameters other than db"),
        ("http://h", "must start with one of memory://, redis://"),
        ("redis:h", "must start with one of memory://, redis://"),
        ("", "must start with one of memory://, redis://"),
    ],
)
def test_url_errors_name_rule_and_value(url: str, rule: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_url(url)
    assert caught.value.field == "phrases_url"
    assert rule in caught.value.description
    assert f"got {url!r}" in caught.value.description


@pytest.mark.parametrize(
    "url, expected",
    [
        ("redis://h", "redis://h"),
        ("redis://u:p@h/1", "redis://u:***@h/1"),
        ("redis://:p@h", "redis://:***@h"),
        ("redis://p@h", "redis://***@h"),
        ("redis:u:p@h", "redis:***@h"),
        ("redis+sentinel://h/m?sentinel_password=p", "redis+sentinel://h/m?sentinel_password=***"),
        ("memory://", "memory://"),
    ],
)
def test_masked_urls_keep_the_address(url: str, expected: str) -> None:
    assert masked(url) == expected


def visible_texts(url: str) -> list[str]:
    """All that users, logs or tracebacks may show of a URL."""
    texts = [masked(url)]
    for attempt in (check_url, parse):
        try:
            texts.append(repr(attempt(url)))
        except InvalidInput as error:
            texts += [str(error), repr(error)]
    try:
        chosen = PhraseSettings(phrases_url=url)
        texts += [repr(chosen), str(chosen), repr(chosen.effective())]
    except ValidationError as error:
        texts += [str(error), repr(error), explain(error)]
    return texts


BREAKING = "@/:#?&%[]= \u2100é"


@settings(deadline=None)
@given(
    st.sampled_from(
        [
            "redis://u:{}@h", "redis://:{}@h:bad", "rediss://u:{}@h/x",
            "redis+cluster://u:{}@a,b/1", "redis+sentinel://u:{}@a/m?x=1", "unix://u:{}@/s?db=x",
            "redis+sentinel://h/m?sentinel_password={}", "redis:u:{}@h", "redis//u:{}@h",
            "http://u:{}@h", "redis://h?password={}", "u:{}@h",
        ]
    ),
    st.text(BREAKING, max_size=3),
    st.booleans(),
)  # fmt: skip
def test_secrets_never_appear_in_errors(form: str, breaking: str, encoded: bool) -> None:
    """Passwords stay hidden in valid URLs and in those whose password is not encoded."""
    secret = breaking.join([SECRET, SECRET])
    url = form.format(quote(secret, safe="") if encoded else secret)
    assert not [text for text in visible_texts(url) if SECRET in text]


class Settings(PhraseSettings):
    """Settings as a role has them."""

    model_config = settings_config("test")


def test_effective_settings_mask_secrets() -> None:
    chosen = Settings(phrases_url=f"redis://u:{SECRET}@h:1")
    assert chosen.effective()["phrases_url"] == "redis://u:***@h:1"
    assert chosen.phrases_url == f"redis://u:{SECRET}@h:1"


def test_invalid_url_fails_startup_with_one_line() -> None:
    with pytest.raises(StartupFailure) as caught:
        OrchestratorSettings.from_command_line(["--phrases-url", f"redis://u:{SECRET}@h:bad"])
    assert str(caught.value) == (
        "phrases_url: must have hosts of the form name, name:port or [address]:port; "
        "got 'redis://u:***@h:bad'"
    )


def test_unusable_tls_files_of_a_url_fail_startup(tmp_path: Path) -> None:
    """Bad files used to be noticed at the first connection, without being named.

    For an encrypted key, the passphrase was asked for on the terminal.
    """
    authority = Authority(tmp_path)
    pair = authority.pair("ours")
    key = load_pem_private_key(pair.key.read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    key_format = (Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    encrypted.write_bytes(key.private_bytes(*key_format))
    certificate = f"ssl_certfile={pair.certificate}"
    for query, error in (
        (f"ssl_ca_certs={tmp_path / 'gone.pem'}", "ssl_ca_certs: .*gone.pem cannot be read"),
        (f"ssl_ca_certs={pair.key}", "ssl_ca_certs: .* must hold PEM certificates"),
        (
            f"{certificate}&ssl_keyfile={encrypted}",
            "ssl_certfile, ssl_keyfile: .*the key is encrypted",
        ),
        (certificate, "must be a PEM certificate and its key"),
    ):
        url = f"rediss://u:{SECRET}@h?{query}"
        with pytest.raises(StartupFailure, match=error) as caught:
            OrchestratorSettings.from_command_line(["--phrases-url", url])
        assert SECRET not in str(caught.value)
    check_usable(f"rediss://h?ssl_ca_certs={authority.ca}&{certificate}&ssl_keyfile={pair.key}")


def test_invalid_url_in_the_environment_fails_startup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTLOOP_ORCHESTRATOR_PHRASES_URL", f"http://u:{SECRET}@h")
    with pytest.raises(StartupFailure, match="must start with one of memory://") as caught:
        OrchestratorSettings.from_command_line([])
    assert SECRET not in str(caught.value)


def test_errors_of_other_settings_show_the_value() -> None:
    with pytest.raises(StartupFailure, match="phrases_mib: .*got '0'"):
        OrchestratorSettings.from_command_line(["--phrases-mib", "0"])
