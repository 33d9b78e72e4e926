"""Threads that run a compiled CPU kernel together, with barriers between its parts.

Importing this module requires llvmlite. The threads are those of torch's OpenMP runtime: one pool
and one setting, `torch.set_num_threads`. A team is started once per kernel, as waking the threads
for every part would take longer than many of the parts.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from llvmlite import binding as llvm

from draftloop.runtime.llvm import I32, I64, PTR, VOID, Emitter, at, i64, loop, minimum

OPENMP_FUNCTIONS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
# A team's record: 64-bit words, each in its own cache line. Members that have arrived at the
# barrier, barriers completed so far, and for every member the units of its part that are taken.
LINE, MEMBERS = 8, 128
ARRIVED, TURN, TAKEN = 0, LINE, 2 * LINE
RECORD = TAKEN + MEMBERS * LINE
# Spins of a waiting member before it yields its core: about 20 to 60 microseconds. Members end a
# part within a few microseconds of each other, unless another process occupies a member's core.
SPINS = 1000


@functools.cache
def bind_openmp() -> bool:
    """Lets compiled code call the OpenMP runtime of torch; False if there is none."""
    try:
        torch_library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        for name in OPENMP_FUNCTIONS:
            # A symbol lookup through a library also searches the libraries it was linked with.
            llvm.add_symbol(name, ctypes.cast(torch_library[name], ctypes.c_void_p).value)
    except (OSError, AttributeError):
        return False
    return True


class Team:
    """Emits, into a kernel's module, what its threads need to work together.

    A *member* is a function of one pointer, which every thread of the team runs. All threads must
    call `wait` equally often.
    """

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._wait: Any = None

    def record(self, b: Any) -> Any:
        """Emits a new team's record, on the stack of the calling thread."""
        with b.goto_entry_block():
            record = b.alloca(I64, RECORD)
            record.align = 64
        with loop(b, i64(0), i64(RECORD), i64(LINE)) as place:
            b.store(i64(0), at(b, record, place, I64))
        return record

    def run(self, b: Any, member: Any, argument: Any, threads: Any) -> None:
        """Emits member(argument), run by `threads` threads, or by this one if it is one."""
        parallel = self._known("GOMP_parallel", VOID, [PTR, PTR, I32, I32])
        threads = minimum(b, threads, i64(MEMBERS))
        with b.if_else(b.icmp_signed(">", threads, i64(1))) as (in_team, alone):
            with in_team:
                members = b.trunc(threads, I32)
                b.call(parallel, [member, argument, members, I32(0)])
            with alone:
                b.call(member, [argument])

    def run_rows(
        self, b: Any, member: Any, argument: Any, known: dict[str, Any], least: int
    ) -> None:
        """`run` over `rows` of `width` values, with at least `least` values per thread."""
        values = b.mul(known["rows"], known["width"])
        threads = minimum(b, known["threads"], b.sdiv(values, i64(least)))
        self.run(b, member, argument, minimum(b, threads, known["rows"]))

    def size(self, b: Any) -> Any:
        """Number of threads of the team."""
        return b.zext(b.call(self._known("omp_get_num_threads", I32, []), []), I64)

    def own_part(self, b: Any, units: Any) -> tuple[Any, Any]:
        """Start and end of this thread's units of work."""
        return self._part_of(b, units, self._number(b))

    @contextmanager
    def take_chunks(
        self, b: Any, record: Any, unit: Any, stop: Any
    ) -> Iterator[tuple[Any, Any, Any]]:
        """Emits a loop over chunks of range(stop), `unit` long, that no other thread has taken.

        A thread takes its own part first, then what is left of others' (work stealing), so that a
        thread that is disturbed does less. Yields start and end of each chunk, and the end of the
        part it belongs to. All must `wait` before units are taken again.
        """
        number, size = self._number(b), self.size(b)
        with loop(b, i64(0), size) as turn:
            whose = b.srem(b.add(number, turn), size)
            part_start, part_stop = self._part_of(b, stop, whose)
            taken = at(b, record, b.add(i64(TAKEN), b.mul(whose, i64(LINE))), I64)
            body, inside, done = (b.append_basic_block(name) for name in ("take", "in", "taken"))
            b.branch(body)
            b.position_at_end(body)
            first = b.add(part_start, b.atomic_rmw("add", taken, unit, "monotonic"))
            b.cbranch(b.icmp_signed("<", first, part_stop), inside, done)
            b.position_at_end(inside)
            yield first, minimum(b, b.add(first, unit), part_stop), part_stop
            b.branch(body)
            b.position_at_end(done)

    def wait(self, b: Any, record: Any) -> None:
        """Emits a barrier; what any thread wrote before it is visible to all after it."""
        if self._wait is None:
            self._wait = self._emit_wait()
        b.call(self._wait, [record])

    def _emit_wait(self) -> Any:
        function, b = self._emitter.define("wait", [PTR])
        (record,) = function.args
        arrived, turn = (at(b, record, i64(n), I64) for n in (ARRIVED, TURN))
        taken = at(b, record, i64(TAKEN), I64)
        before = b.load_atomic(turn, "monotonic", 8, typ=I64)
        others = b.atomic_rmw("add", arrived, i64(1), "acq_rel")
        size = self.size(b)
        with b.if_else(b.icmp_signed("==", b.add(others, i64(1)), size)) as (last, early):
            with last:
                with loop(b, i64(0), size) as member:
                    b.store(i64(0), at(b, taken, b.mul(member, i64(LINE)), I64))
                b.store(i64(0), arrived)
                b.atomic_rmw("add", turn, i64(1), "release")
            with early:
                self._emit_spin(b, turn, before)
        b.ret_void()
        return function

    def _emit_spin(self, b: Any, turn: Any, before: Any) -> None:
        """Emits waiting until the turn differs from `before`."""
        pause = self._known("llvm.x86.sse2.pause", VOID, [])
        rest = self._known("sched_yield", I32, [])
        with b.goto_entry_block():
            spins = b.alloca(I64)
        b.store(i64(0), spins)
        head, body, done = (b.append_basic_block(name) for name in ("head", "body", "done"))
        b.branch(head)
        b.position_at_end(head)
        now = b.load_atomic(turn, "acquire", 8, typ=I64)
        b.cbranch(b.icmp_signed("==", now, before), body, done)
        b.position_at_end(body)
        count = b.load(spins, typ=I64)
        b.store(b.add(count, i64(1)), spins)
        with b.if_else(b.icmp_signed("<", count, i64(SPINS))) as (soon, late):
            with soon:
                b.call(pause, [])
            with late:
                b.call(rest, [])
        b.branch(head)
        b.position_at_end(done)

    def _number(self, b: Any) -> Any:
        """Index of this thread in the team."""
        return b.zext(b.call(self._known("omp_get_thread_num", I32, []), []), I64)

    def _part_of(self, b: Any, units: Any, number: Any) -> tuple[Any, Any]:
        """Start and end of the units of work of thread `number`."""
        size = self.size(b)
        start, stop = (b.sdiv(b.mul(units, end), size) for end in (number, b.add(number, i64(1))))
        return start, stop

    def _known(self, name: str, result: Any, arguments: list[Any]) -> Any:
        known = self._emitter.module.globals.get(name)
        return known or self._emitter.declare(name, result, arguments)
