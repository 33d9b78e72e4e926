"""A text that mostly stays as it is comes in fewer rounds: `python -m examples.prediction`.

The output is the same with and without the prediction, token for token.
"""

from __future__ import annotations

import argparse

from draftloop.client import DEFAULT_ADDRESS, Client

PROMPT = "def area(width, height):\n    "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default=DEFAULT_ADDRESS)
    arguments = parser.parse_args()

    with Client(arguments.server, timeout=60) as client:
        # What the model would write anyway stands for a file of which little is going to change.
        expected = client.generate(PROMPT, max_tokens=48, ignore_eos=True).text
        plain = client.generate(PROMPT, max_tokens=48, ignore_eos=True, strategy="prompt_lookup")
        predicted = client.generate(
            PROMPT, max_tokens=48, ignore_eos=True, strategy="prompt_lookup", prediction=expected
        )
    print(f"the same tokens: {'yes' if plain.token_ids == predicted.token_ids else 'no'}")
    print(f"rounds without the prediction: {plain.figures.rounds}")
    print(f"rounds with it:                {predicted.figures.rounds}")


if __name__ == "__main__":
    main()
