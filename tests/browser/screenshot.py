"""`python -m tests.browser.screenshot`: the playground's pictures, from a real run."""

from __future__ import annotations

import sys

from playwright.sync_api import Browser

from orchestrator.launcher import Stack, StackConfig
from tests.browser.chromium import chromium
from tests.browser.playground import Playground
from tests.contract.repository import ROOT

PICTURES = {"light": "playground.png", "dark": "playground-dark.png"}
SIZE = {"width": 1280, "height": 1010}
INFLATE = "300M"  # so that the speeds are those of a target worth drafting for
RUN = {"max_tokens": 96, "temperature": 0.7, "seed": 7}
ROUND = 12


def main() -> None:
    """One comparison in each theme."""
    with Stack(StackConfig(port=0, http_port=0, drafter_port=0, verifier_port=0,
                           inflate=INFLATE)) as stack, chromium() as browser:  # fmt: skip
        for theme, name in PICTURES.items():
            take(browser, f"http://{stack.http_address}", theme, name)
            sys.stdout.write(f"wrote docs/{name}\n")


def take(browser: Browser, base: str, theme: str, name: str) -> None:
    """Compares, chooses a round, and takes the picture."""
    context = browser.new_context(color_scheme=theme, viewport=SIZE, reduced_motion="reduce")  # type: ignore[arg-type]
    playground = Playground(context.new_page(), base)
    playground.fill(**RUN)
    playground.at("#compare").click()
    playground.wait()
    playground.at("#answer .token").nth(ROUND).click()
    playground.page.screenshot(path=ROOT / "docs" / name, full_page=True)
    context.close()


if __name__ == "__main__":
    main()
