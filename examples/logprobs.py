"""Prints each token's probability and the likeliest tokens: `python -m examples.logprobs`."""

from __future__ import annotations

import argparse
import math

from draftloop.client import DEFAULT_ADDRESS, Client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default=DEFAULT_ADDRESS)
    arguments = parser.parse_args()

    with Client(arguments.server, timeout=60) as client:
        completion = client.generate("import os\nimport ", max_tokens=8, logprobs=3)
        for entry in completion.logprobs:
            chosen = client.detokenize([entry.token_id])
            others = ", ".join(
                f"{client.detokenize([token])!r} {math.exp(logprob):.0%}"
                for token, logprob in entry.top
            )
            print(f"{chosen!r:<14} {math.exp(entry.logprob):>4.0%}   likeliest: {others}")


if __name__ == "__main__":
    main()
