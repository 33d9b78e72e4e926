"""An outage of the phrase log is told once, and its end not before it is one."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from phrase_store import replication
from phrase_store.breaker import BreakerPolicy
from phrase_store.log import LogRefused, LogUnavailable
from phrase_store.outage import Outage
from phrase_store.replication import Link, LinkFigures

POLICY = BreakerPolicy(failures=1)
LOST, BACK = "phrase log lost", "phrase log back"


def nothing() -> None:
    """A call that goes well."""


def failing(link: Link, error: Exception) -> None:
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
def test_what_was_refused_is_not_back_because_it_can_be_read(
    monkeypatch: pytest.MonkeyPatch, error: Exception, events: list[str]
) -> None:
    """The writer has had nothing to write for long."""
    monkeypatch.setattr(replication, "FORGOTTEN_S", -1.0)
    outage = Outage()
    writer, reader, another = (
        Link(LinkFigures(), POLICY, outage, task) for task in ("write", "read", "write")
    )
    with capture_logs() as lines:
        failing(writer, error)
        reader.try_call(nothing)
        assert [line["event"] for line in lines] == events
        another.try_call(nothing)
    assert [line["event"] for line in lines] == [LOST, BACK]
