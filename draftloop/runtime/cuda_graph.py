"""Forwards of any size in padded steps, each replayed as a CUDA graph where one can be recorded.

A step is some hundreds of kernels of a few microseconds; started one by one from Python, each would
take longer to start than to run.
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
from draftloop.runtime.trial import said_by

log = logs.get(__name__)

ROWS = 128  # of a step
WARM_UPS = 2  # before recording: kernels are compiled, and libraries get their working memory


class Steps:
    """Runs batches in padded steps. Used from one thread at a time.

    After `record` they are replayed; before it every kernel is started from here, with equal bits.
    """

    def __init__(self, step: PaddedStep, device: torch.device) -> None:
        self._inputs, self._step, self._device = step.inputs, step, device
        self._body: Callable[[], Tensor] = step.body
        self._head: Callable[[Tensor], Tensor] = step.head

    @property
    def recorded(self) -> bool:
        """Whether steps are replayed."""
        return isinstance(self._body, _Replay)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Runs steps of padding alone; raises whatever a kernel that cannot be had raises."""
        with on_device(self._device):
            for _ in range(WARM_UPS):
                self._step.head(self._step.body())
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)

    @torch.inference_mode()
    def record(self) -> bool:
        """Has steps replayed from now on; False, and a line in the log, where that cannot be."""
        try:
            with on_device(self._device):
                body = _Replay(self._step.body)
                head = _Replay(lambda: self._step.head(body.result))
        except RuntimeError as error:
            log.warning("no CUDA graph could be recorded", reason=said_by(error),
                        effect="forwards take longer")  # fmt: skip
            return False
        self._body, self._head = body, lambda _: head()
        return True

    def run(self, batch: Batch, rows: Sequence[int]) -> Tensor:
        """The logits of some rows, ascending; float32 [rows, vocabulary]; stores keys and values.

        Under `torch.inference_mode`.
        """
        planned, wanted = plan(batch, self._inputs.width), np.array(rows, np.int32)
        said = []
        with on_device(self._device):
            for start in range(0, len(batch.token_ids), self._inputs.rows):
                first, stop = np.searchsorted(wanted, (start, start + self._inputs.rows))
                self._inputs.write(planned, start, wanted[first:stop] - start)
                hidden = self._body()
                if stop > first:  # the next step writes over what this one leaves
                    chosen = self._inputs.wanted[: stop - first]
                    said.append(self._head(hidden).index_select(0, chosen).float())
        return said[0] if len(said) == 1 else torch.cat(said)


class _Replay:
    """A function without arguments as a CUDA graph; `result` is what it returns, every time.

    Raises RuntimeError where the function does what cannot be recorded.
    """

    def __init__(self, function: Callable[[], Tensor]) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # another model of this process may be at work on another thread meanwhile
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            self.result = function()

    def __call__(self) -> Tensor:
        self._graph.replay()
        return self.result


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Triton starts its kernels on the thread's device, whatever the tensors' is."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def steps_for(make: Callable[[Inputs], PaddedStep], width: int, device: torch.device) -> Steps:
    """Steps of ROWS rows with draft nodes as deep as `width`, recorded where that can be."""
    with on_device(device):  # or a context on the first GPU would take memory there, too
        steps = Steps(make(Inputs(ROWS, max(width, 1), device)), device)
    steps.warm_up()
    if device.type == "cuda":
        steps.record()
    return steps
