"""Generates JSON that fits a schema, with and without drafts: `python -m examples.structured`."""

from __future__ import annotations

import argparse
import json

from draftloop.client import DEFAULT_ADDRESS, Client, Grammar

PERSON = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "age", "colours"],
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "colours": {
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": {"enum": ["red", "green", "blue"]},
        },
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default=DEFAULT_ADDRESS)
    arguments = parser.parse_args()

    grammar = Grammar("json_schema", json.dumps(PERSON))
    with Client(arguments.server, timeout=60) as client:
        plain = client.generate("person = ", grammar=grammar, seed=1, strategy="autoregressive")
        drafted = client.generate("person = ", grammar=grammar, seed=1)
        print(json.loads(drafted.text))
        print(f"the same tokens: {'yes' if plain.token_ids == drafted.token_ids else 'no'}")
        print(f"tokens per round: {drafted.figures.tokens_per_round:.1f}")


if __name__ == "__main__":
    main()
