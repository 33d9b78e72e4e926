"""Calls tools in a chat, with the unchanged `openai` package: `python -m examples.tools`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from openai import OpenAI

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city on the next days.",
        "parameters": {
            "type": "object",
            "additionalProperties": False,
            "required": ["city", "days"],
            "properties": {
                "city": {"enum": ["Bern", "Berlin", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
            },
        },
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    arguments = parser.parse_args()

    messages: list[Any] = [{"role": "user", "content": "Do I need an umbrella in Rome?"}]
    with OpenAI(base_url=arguments.base_url, api_key="none") as client:
        model = client.models.list().data[0].id
        # Omit tool_choice for models that were trained to call tools: they decide by themselves.
        completion = client.chat.completions.create(
            model=model, messages=messages, tools=[WEATHER], tool_choice="required", seed=1,
            parallel_tool_calls=False,
        )  # fmt: skip
        message = completion.choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            assert call.type == "function"
            call_arguments = json.loads(call.function.arguments)
            print(f"called: {call.function.name} {call_arguments}")
            result = json.dumps(
                [{"day": day + 1, "rain": False} for day in range(call_arguments["days"])]
            )
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        answer = client.chat.completions.create(
            model=model, messages=messages, tools=[WEATHER], max_tokens=32, seed=1
        )
        print(answer.choices[0].message.content)


if __name__ == "__main__":
    main()
