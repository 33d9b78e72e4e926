"""A text that mostly stays as it is comes in fewer rounds: `python -m examples.prediction`.

The output is the same with and without the prediction, token for token. Both have drafts of a fixed
size here: otherwise measured costs decide how much is drafted, and a server that has just started
does not know yet what drafts bring.
"""

from __future__ import annotations

import argparse
from typing import Any

from draftloop.client import DEFAULT_ADDRESS, Client

PROMPT = "import os\n\n\n"
# Sampled: greedy text of so small a model repeats itself, and needs no prediction to be guessed.
SAID: dict[str, Any] = {"max_tokens": 48, "ignore_eos": True, "temperature": 0.8, "seed": 5}
DRAFTED: dict[str, Any] = {**SAID, "strategy": "prompt_lookup", "max_draft_tokens": 8}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default=DEFAULT_ADDRESS)
    arguments = parser.parse_args()

    with Client(arguments.server, timeout=60) as client:
        # What the model would write anyway stands for a file of which little is going to change.
        expected = client.generate(PROMPT, **SAID).text
        plain = client.generate(PROMPT, **DRAFTED)
        predicted = client.generate(PROMPT, **DRAFTED, prediction=expected)
    print(f"the same tokens: {'yes' if plain.token_ids == predicted.token_ids else 'no'}")
    print(f"rounds without the prediction: {plain.figures.rounds}")
    print(f"rounds with it:                {predicted.figures.rounds}")


if __name__ == "__main__":
    main()
