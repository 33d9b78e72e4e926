"""All requests of a file, so many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from draftloop.errors import DraftloopError
from orchestrator.batch.answers_file import FIRST_FAILURE, AnswersFile
from orchestrator.batch.asker import Asker, complaint
from orchestrator.batch.requests_file import BatchRequest

USED = ("completion_tokens", "output_tokens")  # as OpenAI's and as Anthropic's usage has it


@dataclass(slots=True)
class Tally:
    """What came of the requests so far."""

    answered: int = 0
    failed: int = 0
    tokens: int = 0
    first_failure: str = ""

    @property
    def done(self) -> int:
        """Requests that are through, one way or the other."""
        return self.answered + self.failed

    def count(self, answer: dict[str, Any]) -> None:
        """One more."""
        response, error = answer["response"], answer["error"]
        if response is not None and response["status_code"] < FIRST_FAILURE:
            self.answered += 1
            self.tokens += _tokens(response["body"])
            return
        self.failed += 1
        why = error["message"] if error else complaint(response["body"])
        self.first_failure = self.first_failure or f"{answer['custom_id']}: {why}"


def _tokens(body: Any) -> int:
    usage = body.get("usage") if isinstance(body, dict) else None
    return next((usage[name] for name in USED if name in usage), 0) if usage else 0


async def run(
    requests: Iterator[BatchRequest],
    answers: AnswersFile,
    asker: Asker,
    *,
    concurrency: int,
    told: Callable[[Tally], None],
) -> Tally:
    """Answers as they come; `told` hears of every one. Raises Unavailable without a server."""
    tally = Tally()

    async def work() -> None:
        for request in requests:  # all workers take from the same iterator
            answer = await asker.answer(request)
            answers.add(answer)
            tally.count(answer)
            told(tally)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    except* DraftloopError as errors:
        raise errors.exceptions[0] from None
    return tally
