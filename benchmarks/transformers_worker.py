"""transformers' own `generate` in a separate process, with lines of JSON on stdin and stdout.

The first input line says what to load, and is answered with `ready`. Every further line is a case,
and is answered with its outcome. Between lines, the process waits in a read and uses no CPU.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, TextIO

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from draftloop.runtime.inflate import inflate, parse_size

LOOKUP_TOKENS = 10


class StepClock(BaseStreamer):  # type: ignore[misc]
    """Records when tokens arrive, and how many at a time."""

    def __init__(self) -> None:
        self.asked = time.perf_counter()
        self.steps: list[tuple[float, int]] = []
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        """Called with the prompt first, then once per round."""
        if self._prompt_seen:
            self.steps.append((time.perf_counter() - self.asked, value.numel()))
        self._prompt_seen = True

    def end(self) -> None:
        """Does nothing: nothing is buffered."""


class Worker:
    """A target and a draft model."""

    def __init__(self, order: dict[str, Any]) -> None:
        torch.set_num_threads(order["threads"])
        self.device = order["device"]
        self.target = self._load(order["target"], order["inflate"], order["dtype"])
        self.draft = self._load(order["draft"], order["draft_inflate"], order["dtype"])
        self.special: dict[str, dict[str, Any]] = {
            "transformers": {},
            "transformers assisted": {"assistant_model": self.draft},
            "transformers lookup": {"prompt_lookup_num_tokens": LOOKUP_TOKENS},
        }

    def _load(self, folder: str, size: str, dtype: str) -> PreTrainedModel:
        network = load(folder, dtype)
        if size:
            inflate(network, parse_size(size))
        return network.eval().requires_grad_(False).to(self.device)

    @torch.inference_mode()
    def run(self, case: dict[str, Any]) -> dict[str, Any]:
        """Tokens and steps of one continuation."""
        torch.manual_seed(case["seed"])
        prompt = torch.tensor([case["prompt"]], device=self.device)
        clock = StepClock()
        output = self.target.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=case["tokens"],
            streamer=clock,
            **sampling(case["temperature"]),
            **self.special[case["method"]],
        )
        return {"token_ids": output[0, prompt.shape[1] :].tolist(), "steps": clock.steps}


def sampling(temperature: float) -> dict[str, Any]:
    """Arguments to sample from the whole distribution at this temperature; 0 is greedy."""
    if not temperature:
        return {"do_sample": False}
    return {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}


def load(folder: str, dtype: str) -> PreTrainedModel:
    """A model that continues after its end-of-text token, as all measured systems do."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
    )
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def serve(orders: TextIO, answers: TextIO) -> None:
    """Loads what the first line says, then answers every line until stdin ends."""
    worker = Worker(json.loads(next(orders)))
    print(json.dumps({"ready": True, "threads": torch.get_num_threads()}), file=answers, flush=True)
    for line in orders:
        print(json.dumps(worker.run(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    # What libraries print must not mix with the answers.
    own_stdout = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin, own_stdout)
