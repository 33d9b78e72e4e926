"""Where the page shows the server's refusals: beside the field, or where it can be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import OpenPage
from tests.browser.test_answer import COMPLETIONS
from tests.browser.test_playground import RUN

if TYPE_CHECKING:
    from tests.browser.playground import Playground

PHONE = {"width": 360, "height": 740}
MAGNIFIED = {"width": 640, "height": 360}  # a screen of 1280 by 720 at 200 %
SEEN = """element => {
  const { top, bottom } = element.getBoundingClientRect();
  return top >= 0 && bottom < innerHeight + 1;
}"""
FOCUSED = "() => document.activeElement.id"
SAID = "field => field.validationMessage"
FULL = {"error": {"message": "requests: at most 8 run at once", "param": None}}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("temperature", "1000", "must be from 0 to 100; got 1000"),
        ("max-tokens", "2147483648", "must be less than or equal to 2147483647"),
        ("prompt", "", "must not be empty"),
        ("prompt", "word " * 6000, "prompt is too long: 12000 tokens"),
    ],
)
def test_field_errors_are_shown_beside_the_field(
    open_page: OpenPage, name: str, value: str, words: str
) -> None:
    """On phones it used to be shown below the visible part of the page."""
    playground = open_page(viewport=PHONE)
    field = playground.at(f"#{name}")
    playground.fill(**{**RUN, name: value})
    playground.at("#run").click()
    playground.wait("Failed")
    assert words in field.evaluate(SAID) == playground.text("#error")
    assert playground.page.evaluate(FOCUSED) == name and field.evaluate(SEEN)
    playground.fill(**{name: RUN[name.replace("-", "_")]})
    assert field.evaluate(SAID) == ""
    playground.run()
    assert not playground.at("#error").is_visible()


def test_refused_request_can_be_sent_again(playground: Playground) -> None:
    """The request is sent again, as the server may be another one by then."""
    playground.fill(**{**RUN, "prompt": ""})
    for _ in range(2):
        with playground.page.expect_response(COMPLETIONS):
            playground.at("#run").click()
        playground.wait("Failed")
    playground.fill(temperature=-1)
    playground.at("#run").click()  # the browser itself reports this mistake
    assert not playground.at("#error").is_visible()
    playground.problems.clear()  # the browser itself reports every status 400


@pytest.mark.parametrize(
    ("size", "wait", "hint"),
    [
        (PHONE, "3", "; try again in 3 s"),
        (MAGNIFIED, "Wed, 21 Oct 2026 07:28:00 GMT", ""),
    ],
)
def test_other_refusals_are_shown_in_the_visible_area(
    open_page: OpenPage, size: dict[str, int], wait: str, hint: str
) -> None:
    playground = open_page(viewport=size)
    playground.page.route(
        COMPLETIONS,
        lambda route: route.fulfill(status=429, headers={"Retry-After": wait}, json=FULL),
    )
    playground.at("#run").click()
    playground.wait("Failed")
    assert playground.text("#error") == FULL["error"]["message"] + hint  # type: ignore[operator]
    assert playground.at("#error").evaluate(SEEN)
