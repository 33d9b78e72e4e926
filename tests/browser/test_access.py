"""Accessibility of the page: keyboard, screen readers, themes, widths, reduced motion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import OpenPage
from tests.browser.inspection import CONTRASTS, NAMELESS, SHIFTS
from tests.browser.slow_pages import slow_pages
from tests.browser.test_playground import RUN

if TYPE_CHECKING:
    from tests.browser.playground import Playground

FOCUS_ORDER = [
    "", "theme", "example", "prompt", "strategy", "temperature", "max-tokens", "seed", "run",
    "compare",
]  # fmt: skip
LIVE = ["status", "about-token"]  # the verdict and the error are hidden
LEAST_CONTRAST = 4.5
SHOWS_STOP = "() => document.querySelector('#stop').getBoundingClientRect().bottom <= innerHeight"
FOCUSED = "() => document.activeElement.id"


def focus_by_tab(playground: Playground, name: str) -> None:
    for _ in range(40):
        if playground.page.evaluate(FOCUSED) == name:
            return
        playground.page.keyboard.press("Tab")
    pytest.fail(f"the tabulator never reaches #{name}")


def node_properties(node: dict[str, Any]) -> dict[str, Any]:
    """The properties of a node of the accessibility tree."""
    return {each["name"]: each["value"].get("value") for each in node.get("properties", ())}


def test_keyboard_alone_operates_the_page(playground: Playground) -> None:
    playground.fill(**RUN)
    playground.page.reload()
    playground.wait("Ready")
    order = []
    for _ in FOCUS_ORDER:
        playground.page.keyboard.press("Tab")
        order.append(playground.page.evaluate(FOCUSED))
    assert order == FOCUS_ORDER  # the first is the link to the answer
    playground.fill(**RUN)
    focus_by_tab(playground, "run")
    playground.page.keyboard.press("Enter")
    playground.wait()
    assert playground.page.evaluate(FOCUSED) == "run"  # not lost on a disabled button
    focus_by_tab(playground, "answer")
    for key in ("End", "ArrowLeft", "ArrowRight"):
        playground.page.keyboard.press(key)
    assert "from" in playground.text("#about-token")
    assert playground.at("#answer .token.chosen").count() == 1
    playground.page.keyboard.press("Tab")
    assert "draft model" in playground.text("#about-token")
    playground.page.keyboard.press("Space")
    assert playground.at("#legend [aria-pressed=true]").count() == 1
    focus_by_tab(playground, "round")
    playground.page.keyboard.press("Home")
    assert playground.text("#round-name") == "prefill"


def test_accessible_names_and_roles(playground: Playground) -> None:
    assert playground.page.evaluate(NAMELESS) == []
    assert playground.at("html").get_attribute("lang") == "en"
    assert playground.at("h1").count() == playground.at("main").count() == 1
    assert playground.at("img:not([alt])").count() == 0
    assert playground.at("#status").get_attribute("aria-live") == "polite"
    assert playground.at("#error").get_attribute("role") == "alert"


def test_screen_readers_do_not_announce_every_round(playground: Playground) -> None:
    """`output` elements are live regions by default: every round's numbers used to be read out."""
    playground.run(**RUN)
    session = playground.page.context.new_cdp_session(playground.page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    round_name = playground.text("#round-name")  # announced when somebody moves the slider
    assert playground.at("#round").get_attribute("aria-valuetext") == round_name
    live = [node for node in nodes if node_properties(node).get("live", "off") != "off"]
    assert len(live) == len(LIVE)
    for name in LIVE:
        assert playground.at(f"#{name}").get_attribute("aria-live") == "polite"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast(open_page: OpenPage, theme: str) -> None:
    playground = open_page(color_scheme=theme)
    playground.fill(**RUN)
    playground.at("#compare").click()
    playground.wait()
    contrasts = playground.page.evaluate(CONTRASTS)
    assert len(contrasts) > 40
    assert [one for one in contrasts if one[1] < LEAST_CONTRAST] == []
    assert playground.problems == []


def test_themes(open_page: OpenPage) -> None:
    def ground() -> int:
        colour = playground.at("body").evaluate("b => getComputedStyle(b).backgroundColor")
        return int(colour.removeprefix("rgb(").split(",")[0])

    playground = open_page(color_scheme="dark")
    assert ground() < 64
    playground.at("#theme").click()
    assert playground.text("#theme") == "Theme: light" and ground() > 192
    playground.page.reload()
    assert playground.text("#theme") == "Theme: light" and ground() > 192
    playground.at("#theme").click()
    assert playground.text("#theme") == "Theme: dark" and ground() < 64


@pytest.mark.parametrize("width", [360, 1600])
def test_layout_is_stable_at_any_width(open_page: OpenPage, width: int) -> None:
    playground = open_page(viewport={"width": width, "height": 900})
    playground.run(**RUN)
    wide = playground.page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width
    playground.at("#answer").scroll_into_view_if_needed()
    assert playground.page.evaluate(SHIFTS) == []


@pytest.mark.parametrize("width", [360, 1600])
def test_layout_is_stable_while_the_page_loads_line_by_line(
    open_page: OpenPage, base: str, width: int
) -> None:
    """A field that was painted before its input used to move up when the input arrived."""
    with slow_pages(base) as address:
        playground = open_page(address, viewport={"width": width, "height": 900})
        assert playground.page.evaluate(SHIFTS) == []


def test_layout_is_stable_with_long_model_names(playground: Playground) -> None:
    """Long names used to push the page down by a line on phones."""
    playground.page.set_viewport_size({"width": 360, "height": 900})
    top, names = "m => m.getBoundingClientRect().top", "vendor/model-of-some-thirty-letters"
    tops = []
    for models in ("short", f"target {names}, draft {names}"):
        playground.at("#models").evaluate("(p, said) => (p.textContent = said)", models)
        tops.append(playground.at("main").evaluate(top))
    assert tops[0] == tops[1]


def test_reduced_motion(open_page: OpenPage) -> None:
    playground = open_page(reduced_motion="reduce")
    moving = "() => [...document.querySelectorAll('*')].filter(one => "
    moving += "parseFloat(getComputedStyle(one).transitionDuration) > 0).length"
    assert playground.page.evaluate(moving) == 0


def test_low_window_shows_the_form_buttons_beside_the_answer(open_page: OpenPage) -> None:
    """The buttons used to be below a low window unless the page was scrolled to its very end."""
    playground = open_page(viewport={"width": 1280, "height": 500})  # a usual screen at 200 %
    playground.at("#answer").evaluate("box => box.scrollIntoView({ block: 'start' })")
    top, wheel = "box => box.getBoundingClientRect().top", playground.page.mouse
    wheel.move(100, 250)  # over the form
    wheel.wheel(0, 150)
    playground.page.wait_for_function(SHOWS_STOP)
    assert abs(playground.at("#answer").evaluate(top)) < 200  # and only the form has scrolled


def test_forced_colours_hide_nothing(open_page: OpenPage) -> None:
    """Forced colours drop backgrounds, which used to be all that showed bars and selections."""
    playground = open_page(forced_colors="active", color_scheme="light")
    for theme in ("light", "dark"):  # drawings fit a white system background in either theme
        playground.at("#theme").click()
        assert playground.text("#theme") == f"Theme: {theme}"
    playground.fill(**RUN)
    playground.at("#compare").click()
    playground.wait()
    style = "(one, name) => getComputedStyle(one)[name]"
    ground = playground.at("body").evaluate(style, "backgroundColor")
    for bar in ("#drafted-bar", "#plain-bar"):
        assert playground.at(bar).evaluate(style, "backgroundColor") != ground
    edge = playground.at("#tree .edge.bonus").first.evaluate(style, "stroke")
    assert int(edge.removeprefix("rgb(").split(",")[0]) < 64
    playground.at("#legend button").first.click()
    for marked in ("#answer .round.current", "#legend [aria-pressed=true]"):
        assert playground.at(marked).evaluate(style, "outlineStyle") != "none"
