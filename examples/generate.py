"""Generates a whole continuation in one call: `python -m examples.generate`."""

from __future__ import annotations

import argparse

from draftloop.client import DEFAULT_ADDRESS, Client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default=DEFAULT_ADDRESS)
    parser.add_argument("--prompt", default="def fibonacci(n):")
    arguments = parser.parse_args()

    with Client(arguments.server, timeout=60) as client:
        completion = client.generate(arguments.prompt, max_tokens=48, temperature=0.7, seed=1)
    print(arguments.prompt + completion.text)
    usage, figures = completion.usage, completion.figures
    print(f"\n{usage.completion_tokens} tokens, ended by {completion.finish_reason}")
    print(f"{figures.strategy}: {figures.tokens_per_round:.2f} tokens per round")


if __name__ == "__main__":
    main()
