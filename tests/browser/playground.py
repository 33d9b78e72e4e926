"""The playground as a visitor operates it."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator, Page, expect

RUN_TIMEOUT_MS = 180_000
WORDS_AT_ITS_END = "Ended"


class Playground:
    """A loaded page, and the problems that it reported."""

    def __init__(self, page: Page, base: str, greeting: str = "target") -> None:
        self.page = page
        self.problems: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._record_message)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(base + "/")
        self.wait_for("#models", greeting)

    def _record_message(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.text} ({message.location['url']})")

    def at(self, selector: str) -> Locator:
        return self.page.locator(selector)

    def fill(self, **fields: object) -> None:
        """Fills in fields by name, `max_tokens` for `max-tokens`."""
        for name, value in fields.items():
            field = self.at("#" + name.replace("_", "-"))
            if name == "strategy":
                field.select_option(str(value))
            else:
                field.fill(str(value))

    def run(self, **fields: object) -> None:
        """Fills in the fields and runs to the end, by keyboard."""
        self.fill(**fields)
        self.at("#prompt").focus()
        self.page.keyboard.press("Control+Enter")
        self.wait()

    def wait_for(self, selector: str, words: str) -> None:
        expect(self.at(selector)).to_contain_text(words, timeout=RUN_TIMEOUT_MS)

    def wait(self, words: str = WORDS_AT_ITS_END) -> None:
        """Waits until the status contains the words and the last figures have been drawn."""
        self.wait_for("#status", words)
        self.page.evaluate("new Promise(drawn => requestAnimationFrame(() => drawn()))")

    def underline(self, source: str) -> str:
        """The underline style of a source's text, without its colour."""
        token = self.at(f"#legend .token[data-source={source}]")
        script = (
            "t => [getComputedStyle(t).textDecorationLine, getComputedStyle(t).textDecorationStyle]"
        )
        return str(token.evaluate(script))

    def text(self, selector: str) -> str:
        return self.at(selector).text_content() or ""
