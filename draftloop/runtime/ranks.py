"""The ranks of a split model: this process leads and holds rank 0, others hold the rest."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from torch import distributed

from draftloop import logs
from draftloop.runtime import tensor_parallel
from draftloop.runtime.follower import FAILED, Enlistment
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.orders import Order

COMMAND = (sys.executable, "-P", "-m", "draftloop.runtime.follower")
LAST_WORDS_S = 10.0  # time for this rank to report an error itself, as usually all ranks find it
STOP_S = 5.0  # time for the other ranks to end by themselves

log = logs.get(__name__)


class Ranks:
    """The processes of the other ranks, each of which holds a part of the model.

    If one ends, this process ends too, as its forwards could not complete. Its sessions continue on
    another replica.
    """

    def __init__(self, options: ModelOptions, prepare: Callable[[], None]) -> None:
        """`prepare` is pickled and called in each other rank, for instance to configure logs.

        Raises StartupFailure or InvalidInput if the model cannot be split among that many ranks.
        """
        tensor_parallel.require_splittable(options)
        self._options = options
        self._place = tensor_parallel.rendezvous(options.tensor_parallel_size)
        self._stopping, self._loaded = threading.Event(), threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._orders: list[Connection] = []
        for rank in range(1, options.tensor_parallel_size):
            rank_options = dataclasses.replace(options, rank=rank)
            self._start(Enlistment(rank_options, self._place.port, os.getpid(), prepare))

    def _start(self, enlistment: Enlistment) -> None:
        process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE)
        assert process.stdin is not None
        orders = Connection(os.dup(process.stdin.fileno()), readable=False)
        process.stdin.close()
        self._processes.append(process)
        self._orders.append(orders)
        threading.Thread(target=self._watch, args=(process,), name="rank", daemon=True).start()
        orders.send(enlistment)

    def model(self) -> LanguageModel:
        """Loads this rank's part, together with the other ranks; the model leads them from then on.

        Raises what `LanguageModel` raises.
        """
        try:
            tensor_parallel.join(self._options, self._place)
            model = LanguageModel(self._options)
        except Exception:
            self.stop()
            raise
        model.set_lead(self)
        self._loaded.set()
        return model

    def send(self, order: Order) -> None:
        """Sends an order to the other ranks."""
        message = pickle.dumps(order, pickle.HIGHEST_PROTOCOL)
        for orders in self._orders:
            orders.send_bytes(message)

    def handle_failure(self, error: Exception) -> None:
        """Ends the process: the other ranks wait inside a forward that this one has left."""
        log.error("a forward of a split model failed", exc_info=error)
        os._exit(FAILED)

    def stop(self) -> None:
        """Ends the other ranks."""
        self._stopping.set()
        for orders in self._orders:
            orders.close()
        for process in self._processes:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        if not self._stopping.wait(0 if self._loaded.is_set() else LAST_WORDS_S):
            log.error("a rank of the split model has ended, and so does this one", status=status)
            os._exit(FAILED)
