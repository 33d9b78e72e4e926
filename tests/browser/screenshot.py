"""`python -m tests.browser.screenshot`: screenshots of the playground from a real run."""

from __future__ import annotations

import sys
from typing import Literal

from playwright.sync_api import ViewportSize

from orchestrator.launcher import Stack
from orchestrator.stack_config import StackConfig
from tests.browser.chromium import chromium
from tests.browser.playground import Playground
from tests.contract.repository import ROOT

PICTURES: dict[Literal["light", "dark"], str] = {
    "light": "playground.png",
    "dark": "playground-dark.png",
}
SIZE: ViewportSize = {"width": 1280, "height": 900}
INFLATE = "300M"  # so that drafting pays as with a real target model
RUN = {"max_tokens": 96, "temperature": 0.7, "seed": 7}


def main() -> None:
    """Takes screenshots of one comparison in both themes."""
    config = StackConfig(port=0, http_port=0, drafter_port=0, verifier_port=0, inflate=INFLATE)
    with Stack(config) as stack, chromium() as browser:
        context = browser.new_context(viewport=SIZE, reduced_motion="reduce")
        playground = Playground(context.new_page(), f"http://{stack.http_address}")
        playground.fill(**RUN)
        playground.at("#compare").click()
        playground.wait()
        choose_round(playground)
        for theme, name in PICTURES.items():
            playground.page.emulate_media(color_scheme=theme)
            playground.page.screenshot(path=ROOT / "docs" / name, full_page=True)
            sys.stdout.write(f"wrote docs/{name}\n")


def choose_round(playground: Playground) -> None:
    """Selects the round that shows most: many accepted and many rejected nodes."""

    def score(number: int) -> int:
        playground.at("#round").fill(str(number))
        accepted = playground.at("#tree .accepted.node").count()
        rejected = playground.at("#tree .rejected.node").count()
        return accepted * rejected

    rounds = int(playground.at("#round").get_attribute("max") or 0)
    playground.at("#round").fill(str(max(range(rounds + 1), key=score)))
    playground.at("#answer .round.current .token").first.click()


if __name__ == "__main__":
    main()
