"""Streams text and stops after a number of lines: `python -m examples.stream`."""

from __future__ import annotations

import argparse

from draftloop.client import DEFAULT_ADDRESS, Client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default=DEFAULT_ADDRESS)
    parser.add_argument("--lines", type=int, default=4)
    arguments = parser.parse_args()

    lines = 0
    with Client(arguments.server, timeout=60) as client:
        for piece in client.stream("class Stack:", max_tokens=256, ignore_eos=True):
            print(piece.text, end="", flush=True)
            lines += piece.text.count("\n")
            if lines >= arguments.lines:
                break  # leaving the loop cancels the request on the server
    print("\n… enough")


if __name__ == "__main__":
    main()
