"""Sends many requests at once over one connection: `python -m examples.async_many`."""

from __future__ import annotations

import argparse
import asyncio

from draftloop.client import DEFAULT_ADDRESS, AsyncClient, Retry

PROMPTS = ("import ", "def main(", "class Node:", "for index in ", "try:\n    ", "return [")


async def run(server: str) -> None:
    # A busy server says when to try again; these requests wait for that long.
    retry = Retry(attempts=5, max_backoff_s=10)
    async with AsyncClient(server, timeout=120, retry=retry) as client:
        requests = [client.generate(prompt, max_tokens=24) for prompt in PROMPTS]
        for prompt, completion in zip(PROMPTS, await asyncio.gather(*requests), strict=True):
            print(f"{prompt!r} -> {completion.text!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default=DEFAULT_ADDRESS)
    asyncio.run(run(parser.parse_args().server))


if __name__ == "__main__":
    main()
