"""The prompt's box: what was typed stays, or can be brought back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.browser.playground import Playground

OWN = "# my own\n# of several lines\n"
FOCUSED = "() => document.activeElement.id"


def test_examples_can_be_browsed_by_keyboard(playground: Playground) -> None:
    """The first arrow key used to select the first example and move the focus away."""
    example, prompt = playground.at("#example"), playground.at("#prompt")
    example.focus()
    selected = []
    for _ in range(3):
        playground.page.keyboard.press("ArrowDown")
        assert playground.page.evaluate(FOCUSED) == "example"
        selected.append((example.input_value(), prompt.input_value()))
    assert len(set(selected)) == 3 and all(text for _, text in selected)


def test_undo_restores_a_prompt_replaced_by_an_example(playground: Playground) -> None:
    """Undo brings back a typed prompt that an example replaced. It used to be lost."""
    example, prompt = playground.at("#example"), playground.at("#prompt")
    prompt.fill(OWN)
    example.select_option("A class")
    assert "class Stack" in prompt.input_value() and OWN not in prompt.input_value()
    prompt.focus()
    playground.page.keyboard.press("Control+z")
    assert prompt.input_value() == OWN
    assert example.input_value() == ""  # so that the same example can be selected again


def test_prompt_is_kept_across_navigation(playground: Playground, base: str) -> None:
    """The prompt is kept as the seed is, to which it belongs."""
    playground.fill(prompt=OWN, seed=11)
    playground.page.goto(f"{base}/openapi.json")
    playground.page.go_back()
    playground.wait_for("#models", "target")
    assert playground.at("#seed").input_value() == "11"
    assert playground.at("#prompt").input_value() == OWN
