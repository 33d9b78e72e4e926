"""Predicts an output that mostly stays the same, to save rounds: `python -m examples.prediction`.

The output is the same with and without the prediction, token for token. Both requests use a fixed
draft size. Otherwise measured costs decide how much is drafted, and a server that has just started
does not know yet how much drafts gain.
"""

from __future__ import annotations

import argparse
from typing import Any

from draftloop.client import DEFAULT_ADDRESS, Client

PROMPT = "import os\n\n\n"
# Sampled, because greedy text of so small a model repeats itself and is drafted well anyway.
SAID: dict[str, Any] = {"max_tokens": 48, "ignore_eos": True, "temperature": 0.8, "seed": 5}
DRAFTED: dict[str, Any] = {**SAID, "strategy": "prompt_lookup", "max_draft_tokens": 8}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default=DEFAULT_ADDRESS)
    arguments = parser.parse_args()

    with Client(arguments.server, timeout=60) as client:
        # The model's own output stands in for a file of which little will change.
        expected = client.generate(PROMPT, **SAID).text
        plain = client.generate(PROMPT, **DRAFTED)
        predicted = client.generate(PROMPT, **DRAFTED, prediction=expected)
    print(f"the same tokens: {'yes' if plain.token_ids == predicted.token_ids else 'no'}")
    print(f"rounds without the prediction: {plain.figures.rounds}")
    print(f"rounds with it:                {predicted.figures.rounds}")


if __name__ == "__main__":
    main()
