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
LAST_WORDS_S = 10.0  # for this rank to say itself what is wrong: most often they all find it
STOP_S = 5.0  # for the others to end by themselves

log = logs.get(__name__)


class Ranks:
    """Processes that hold a part of a model each and do what they are told.

    One that ends takes this process along: its forwards could not end. Whoever was served by it
    goes on with another replica.
    """

    def __init__(self, options: ModelOptions, prepare: Callable[[], None]) -> None:
        """`prepare` is pickled and called in each of the others, as for its logs.

        Raises StartupFailure or InvalidInput where the model cannot be split among so many.
        """
        tensor_parallel.require_splittable(options)
        self._options = options
        self._place = tensor_parallel.meet(options.tensor_parallel_size)
        self._stopping, self._loaded = threading.Event(), threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._orders: list[Connection] = []
        for rank in range(1, options.tensor_parallel_size):
            theirs = dataclasses.replace(options, rank=rank)
            self._start(Enlistment(theirs, self._place.port, os.getpid(), prepare))

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
        """The model, when all ranks have loaded their parts; it leads them from then on.

        Raises what `LanguageModel` raises.
        """
        try:
            tensor_parallel.join(self._options, self._place)
            model = LanguageModel(self._options)
        except Exception:
            self.stop()
            raise
        model.lead_by(self)
        self._loaded.set()
        return model

    def tell(self, order: Order) -> None:
        """Has the others do the same."""
        message = pickle.dumps(order, pickle.HIGHEST_PROTOCOL)
        for orders in self._orders:
            orders.send_bytes(message)

    def broken(self, error: Exception) -> None:
        """Ends the process: the others are in the middle of what this one has left."""
        log.error("a forward of a split model failed", exc_info=error)
        os._exit(FAILED)

    def stop(self) -> None:
        """Ends the others."""
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
