"""Answers all requests of a file, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from draftloop.errors import DraftloopError
from orchestrator.batch.answers_file import AnswersFile, is_answered
from orchestrator.batch.asker import Asker, error_message
from orchestrator.batch.requests_file import BatchRequest

OUTPUT_TOKEN_FIELDS = ("completion_tokens", "output_tokens")  # in OpenAI's and in Anthropic's usage


@dataclass(slots=True)
class Tally:
    """Counts of the answers so far."""

    answered: int = 0
    failed: int = 0
    tokens: int = 0
    first_failure: str = ""

    def count(self, answer: dict[str, Any]) -> None:
        """Counts one more answer."""
        response, error = answer["response"], answer["error"]
        if is_answered(answer):
            self.answered += 1
            self.tokens += _output_tokens(response["body"])
            return
        self.failed += 1
        reason = error["message"] if error else error_message(response["body"])
        reason = reason or f"status {response['status_code']}"
        self.first_failure = self.first_failure or f"{answer['custom_id']}: {reason}"


def _output_tokens(body: Any) -> int:
    usage = body.get("usage") if isinstance(body, dict) else None
    return next((usage[name] for name in OUTPUT_TOKEN_FIELDS if name in usage), 0) if usage else 0


async def run(
    requests: Iterator[BatchRequest],
    answers: AnswersFile,
    asker: Asker,
    *,
    concurrency: int,
    report_progress: Callable[[int], None],
) -> Tally:
    """Asks `concurrency` requests at a time and writes answers as they come.

    Calls `report_progress(1)` for each answer. Raises Unavailable if there is no server, OSError
    if answers cannot be written.
    """
    tally, failed = Tally(), None

    async def answer_requests() -> None:
        for request in requests:  # all workers take from the same iterator
            answer = await asker.answer(request)
            answers.add(answer)
            tally.count(answer)
            report_progress(1)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(answer_requests())
    except* (DraftloopError, OSError) as errors:
        failed = errors.exceptions[0]  # raised here, it would be a group in Python 3.11.2
    if failed is not None:
        raise failed from None
    return tally
