"""`python -m draftloop.runtime.follower`: a rank that follows the leader of a split model.

Orders come through its standard input; at its end, the process ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NoReturn, cast

import structlog
import torch

from draftloop import logs
from draftloop.errors import DraftloopError
from draftloop.runtime import tensor_parallel
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.orders import Order

FAILED = 1  # exit status of any rank
POLL_S = 0.5  # interval of the checks whether the leader still exists

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Enlistment:
    """The first message to a follower: its options, the leader's port and process."""

    options: ModelOptions
    port: int
    leader: int  # process id
    prepare: Callable[[], None]


def follow(orders: Connection) -> NoReturn:
    """Loads this rank's part of the model and carries out orders until there are no more."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the leader ends this process
        signal.signal(number, signal.SIG_IGN)
    enlistment = cast(Enlistment, orders.recv())
    threading.Thread(target=_exit_with_leader, args=(enlistment.leader,), daemon=True).start()
    enlistment.prepare()
    options = enlistment.options
    structlog.contextvars.bind_contextvars(rank=options.rank)
    try:
        place = tensor_parallel.rendezvous(options.tensor_parallel_size, enlistment.port)
        tensor_parallel.join(options, place)
        _carry_out(orders, LanguageModel(options))
    except EOFError:
        os._exit(0)  # without waiting for the other ranks
    except DraftloopError as error:
        log.error("this rank cannot start", error=str(error))
    except Exception:
        log.exception("this rank failed")
    os._exit(FAILED)


@torch.inference_mode()
def _carry_out(orders: Connection, model: LanguageModel) -> NoReturn:
    """Carries out orders; raises EOFError when there are no more."""
    while True:
        cast(Order, orders.recv()).carry_out(model)


def _exit_with_leader(leader: int) -> NoReturn:
    """Ends the process when the leader is gone, even inside a forward that would wait for it."""
    while os.getppid() == leader:
        time.sleep(POLL_S)
    os._exit(FAILED)


if __name__ == "__main__":
    follow(Connection(os.dup(sys.stdin.fileno()), writable=False))
