"""An outage of the phrase log is reported once, and its end only when it is over."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from phrase_store import replication
from phrase_store.breaker import BreakerPolicy
from phrase_store.log import LogDenied, LogRefused, LogUnavailable
from phrase_store.outage import Outage
from phrase_store.replication import Link, LinkFigures

POLICY = BreakerPolicy(failures=1)
LOST, BACK = "phrase log lost", "phrase log back"


def succeed() -> None:
    """A call that succeeds."""


def fail_on(link: Link, error: Exception) -> None:
    def call() -> None:
        raise error

    link.try_call(call)


@pytest.mark.parametrize(
    ("error", "events"),
    [
        (LogUnavailable("gone"), [LOST, BACK]),
        (LogRefused("read only"), [LOST]),
    ],
)
def test_successful_reads_do_not_end_a_write_outage(
    monkeypatch: pytest.MonkeyPatch, error: Exception, events: list[str]
) -> None:
    """The writer has had nothing to write for a long time."""
    monkeypatch.setattr(replication, "FORGOTTEN_S", -1.0)
    outage = Outage()
    writer, reader, other_writer = (
        Link(LinkFigures(), POLICY, outage, task) for task in ("write", "read", "write")
    )
    with capture_logs() as lines:
        fail_on(writer, error)
        reader.try_call(succeed)
        assert [line["event"] for line in lines] == events
        other_writer.try_call(succeed)
    assert [line["event"] for line in lines] == [LOST, BACK]


@pytest.mark.parametrize(
    ("error", "events"),
    [
        (LogUnavailable("gone"), [LOST, BACK]),
        (LogRefused("read only"), [LOST]),
    ],
)
def test_removing_a_namespace_does_not_end_a_write_outage(
    error: Exception, events: list[str]
) -> None:
    """Tenants that took turns, and every shutdown, used to log that a full Redis was back."""
    outage = Outage()
    writer, reader, another = (
        Link(LinkFigures(), POLICY, outage, task) for task in ("write", "read", "write")
    )
    with capture_logs() as lines:
        fail_on(writer, error)
        writer.close()
        reader.try_call(succeed)
        assert [line["event"] for line in lines] == events
        fail_on(reader, LogUnavailable("gone"))
        reader.close()
        another.try_call(succeed)
    assert [line["event"] for line in lines][-1] == BACK


@pytest.mark.parametrize("answer", [LogDenied("another password"), LogRefused("read only")])
def test_refusal_after_a_connection_outage_is_logged(answer: Exception) -> None:
    """A restarted server with another password first only closed a connection."""
    outage = Outage()
    links = [Link(LinkFigures(), POLICY, outage, "read") for _ in range(4)]
    errors = [LogUnavailable("closed"), LogUnavailable("gone"), answer, answer]
    with capture_logs() as lines:
        for link, error in zip(links, errors, strict=True):
            fail_on(link, error)
    assert [(line["event"], line["reason"]) for line in lines] == [
        (LOST, "closed"),
        (LOST, str(answer)),
    ]
    with capture_logs() as lines:
        fail_on(Link(LinkFigures(), POLICY, Outage(), "read"), answer)
    assert len(lines) == 1
