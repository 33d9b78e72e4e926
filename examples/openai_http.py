"""Uses the `openai` package, unchanged, with the HTTP API: `python -m examples.openai_http`."""

from __future__ import annotations

import argparse

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="none")
    arguments = parser.parse_args()

    with OpenAI(base_url=arguments.base_url, api_key=arguments.api_key) as client:
        model = client.models.list().data[0].id
        print(f"model: {model}")
        chunks = client.completions.create(
            model=model,
            prompt="def fibonacci(n):",
            max_tokens=48,
            temperature=0.7,
            seed=1,
            stream=True,
            # Draftloop's own fields, beside OpenAI's; they change the speed, never the text.
            extra_body={"speculative": {"strategy": "fused"}},
        )
        for chunk in chunks:
            print("".join(choice.text for choice in chunk.choices), end="", flush=True)
    print()


if __name__ == "__main__":
    main()
