"""Runs forwards of any size in padded steps, each replayed as a CUDA graph if possible.

A step consists of hundreds of kernels of a few microseconds each. Launched one by one from Python,
they would take longer to launch than to run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from draftloop import logs
from draftloop.runtime.cuda_inputs import Inputs, plan
from draftloop.runtime.cuda_step import PaddedStep
from draftloop.runtime.forward import Batch
from draftloop.runtime.trial import error_text

log = logs.get(__name__)

ROWS = 128  # per step
WARM_UPS = 2  # before recording, so that kernels are compiled and libraries have their workspaces


class Steps:
    """Runs batches in padded steps. Used from one thread at a time.

    After `record`, steps are replayed; before, each kernel is launched from Python. Results are bit
    for bit the same.
    """

    def __init__(self, step: PaddedStep, device: torch.device) -> None:
        self._inputs, self._step, self._device = step.inputs, step, device
        self._body: Callable[[], Tensor] = step.body
        self._head: Callable[[Tensor], Tensor] = step.head

    @property
    def recorded(self) -> bool:
        """Whether steps are replayed as CUDA graphs."""
        return isinstance(self._body, _Replay)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Runs steps of padding only; raises what unavailable kernels raise."""
        with on_device(self._device):
            for _ in range(WARM_UPS):
                self._step.head(self._step.body())
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)

    @torch.inference_mode()
    def record(self) -> bool:
        """Records CUDA graphs, replayed from now on; if impossible, logs that and returns False."""
        try:
            with on_device(self._device):
                body = _Replay(self._step.body)
                head = _Replay(lambda: self._step.head(body.result))
        except RuntimeError as error:
            log.warning("no CUDA graph could be recorded", reason=error_text(error),
                        effect="forwards take longer")  # fmt: skip
            return False
        self._body, self._head = body, lambda _: head()
        return True

    def run(self, batch: Batch, rows: Sequence[int]) -> Tensor:
        """Runs a batch; returns the logits of `rows` (ascending), float32 [rows, vocabulary].

        To be called under `torch.inference_mode`.
        """
        planned, wanted = plan(batch, self._inputs.width), np.array(rows, np.int32)
        logits = []
        with on_device(self._device):
            for start in range(0, len(batch.token_ids), self._inputs.rows):
                first, stop = np.searchsorted(wanted, (start, start + self._inputs.rows))
                self._inputs.write(planned, start, wanted[first:stop] - start)
                hidden = self._body()
                if stop > first:  # read now, as the next step overwrites the hidden states
                    chosen = self._inputs.wanted[: stop - first]
                    logits.append(self._head(hidden).index_select(0, chosen).float())
        return logits[0] if len(logits) == 1 else torch.cat(logits)


class _Replay:
    """A function without arguments as a CUDA graph; every replay writes to `result`.

    Raises RuntimeError if the function cannot be recorded.
    """

    def __init__(self, function: Callable[[], Tensor]) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # another thread of this process may be running another model meanwhile
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            self.result = function()

    def __call__(self) -> Tensor:
        self._graph.replay()
        return self.result


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Selects the device: Triton launches on the thread's current one, not on the tensors'."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def steps_for(make: Callable[[Inputs], PaddedStep], width: int, device: torch.device) -> Steps:
    """Steps of ROWS rows, for draft nodes up to depth `width`, recorded if possible."""
    with on_device(device):  # else a context on the first GPU would take memory there, too
        steps = Steps(make(Inputs(ROWS, max(width, 1), device)), device)
    steps.warm_up()
    if device.type == "cuda":
        steps.record()
    return steps
