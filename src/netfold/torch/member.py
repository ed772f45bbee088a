"""One member of one group: the native endpoint, and the collectives Python must remember."""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist

from netfold import _native, defaults
from netfold.errors import Aborted, NetfoldError, Timeout
from netfold.say import say
from netfold.torch.accept import Numbers
from netfold.torch.failure import REFORM, Situation, explain, members, named
from netfold.torch.work import Transfer, Work, complete

PENDING, DONE = 0, 1  # what Endpoint.wait() and test() return; 2 is "failed"
TURN_NS = defaults.nanoseconds(defaults.WAIT_TURN_S)

_live: weakref.WeakSet[Member] = weakref.WeakSet()


class Member:
    """Submits collectives and brings each to its outcome exactly once, in whichever thread.

    A collective is *settled* by one thread (claimed under the lock): it copies the result back,
    releases the number in the engine, and completes the future.
    """

    def __init__(
        self,
        endpoint: _native.Endpoint,
        *,
        rank: int,
        ranks: Sequence[int],
        switch: str,
        lease_s: float,
    ) -> None:
        self.endpoint = endpoint
        self.rank = rank  # in the group
        self.ranks = list(ranks)  # global rank of each member
        self.switch = switch  # or several; "": shards
        self.lease_s = lease_s
        self.last_error: NetfoldError | None = None
        self.lock = threading.Condition()
        self._pending: dict[int, Work] = {}  # by sequence, oldest first
        self._completer: threading.Thread | None = None
        self._closed = False
        self._process = os.getpid()
        _live.add(self)

    @property
    def broken(self) -> bool:
        """Whether all further collectives fail."""
        return self.endpoint.failure() is not None

    def submit(
        self,
        transfer: Transfer,
        numbers: Numbers,
        what: Callable[[], str],
        timeout_s: float,
        deferred: bool,
    ) -> Work:
        """Starts an all-reduce. Raises the group's error if it is broken already."""
        self._settle_finished()
        work = Work(self, transfer, what)
        work.timeout_s = timeout_s
        buffer = transfer.buffer
        with self.lock:
            if self._closed:
                raise Aborted(f"{what()}: the group is closed")
            work.sequence = self.endpoint.submit(
                buffer.data_ptr(),
                buffer.numel(),
                numbers.dtype,
                numbers.op,
                numbers.mode,
                numbers.tensor_dtype,
                defaults.nanoseconds(timeout_s),
                deferred,
            )
            self._pending[work.sequence] = work
        return work

    def skip(self, what: str, fingerprint: int) -> int:
        """Another path carries a collective, which ranks agree on by its fingerprint. Returns its
        number; raises if the group is broken."""
        if self._closed:
            raise Aborted(f"{what}: the group is closed")
        sequence: int = self.endpoint.skip(fingerprint)
        if self.broken:
            raise self._explain(what, sequence)
        return sequence

    def block(self, work: Work, timeout: timedelta) -> None:
        """Returns once `work` is settled; raises Timeout when `timeout` (if above 0) is over."""
        limit_s = timeout.total_seconds()
        deadline = time.monotonic() + limit_s if limit_s > 0 else math.inf
        try:
            while not work.settled and time.monotonic() < deadline:
                left_s = min(deadline - time.monotonic(), defaults.WAIT_TURN_S)
                self._turn(work, defaults.nanoseconds(max(left_s, 0.0)))
        except BaseException:  # Ctrl-C: the tensor is its owner's again, so the engine must stop
            self.abort()
            raise
        if not work.settled:
            self.abort()
            done, total = self._progress(work)
            what = f"{work.what()} ({done:,} of {total:,} bytes done)"
            raise self._gave_up(what, work.sequence, limit_s)

    def block_delegated(
        self, inner: dist.Work, what: str, sequence: int, timeout: timedelta
    ) -> None:
        """Returns once the inner backend's collective is done; raises its error, that of the group,
        or Timeout when `timeout` (if above 0) is over, which break the group."""
        limit_s = timeout.total_seconds()
        deadline = time.monotonic() + limit_s if limit_s > 0 else math.inf
        while True:
            left_s = min(deadline - time.monotonic(), defaults.DELEGATED_TURN_S)
            try:
                inner.wait(timedelta(seconds=max(left_s, 1e-3)))
            except RuntimeError:  # the turn is over, or it failed
                if inner.is_completed() and not self._breaks():
                    self.abort()
                    raise
            else:
                return
            if self.broken:
                raise self._explain(what, sequence)
            if time.monotonic() >= deadline:
                self.abort()
                raise self._gave_up(f"{what} through gloo", sequence, limit_s)

    def _breaks(self) -> bool:
        """Whether the group turns out to be broken: gloo sees a dead peer's connection close before
        a lease tells who died."""
        deadline = time.monotonic() + self.lease_s + defaults.DELEGATED_TURN_S
        while not self.broken and time.monotonic() < deadline:
            time.sleep(defaults.DELEGATED_TURN_S)
        return self.broken

    def poll(self, work: Work) -> bool:
        """Settles `work` if its outcome is known."""
        self._advance(work, 0)
        return work.settled

    def watch(self, work: Work) -> None:
        """Has the future of `work` completed by our thread."""
        with self.lock:
            if not work.settled and not work.claimed:
                self.endpoint.watch(work.sequence)
                if self._completer is None and not self._closed:
                    self._completer = threading.Thread(
                        target=self._complete_futures, name="netfold-futures", daemon=True
                    )
                    self._completer.start()
        self.poll(work)

    def report_late(self) -> None:
        """Says who is late, once per collective."""
        for sequence, missing, progress in self.endpoint.late():
            late = members(missing, self.ranks)
            at = [
                f"rank {self.ranks[index]} is at #{progress[index]}"
                for index in range(len(self.ranks))
                if missing >> index & 1 and index < len(progress)
            ]
            for_whom = f"{named(late)} ({', '.join(at) or 'alive'})"
            if not late:  # nobody has told us
                for_whom = "an answer of its aggregator (are packets lost?)"
            say(
                f"rank {self.ranks[self.rank]} waits in collective #{sequence} since "
                f"{defaults.LATE_AFTER_S:g} s for {for_whom}"
            )

    def abort(self) -> None:
        """Breaks the group on all members. Idempotent."""
        if not self._closed and os.getpid() == self._process:
            self.endpoint.abort()

    def close(self) -> None:
        """Leaves the group; what is pending fails. Idempotent, bounded, in any state."""
        if os.getpid() != self._process:
            return  # a forked child: the thread and the group are its parent's
        with self.lock:
            already = self._closed
            self._closed = True
        if already:
            return
        # Others may still need our shard, while the group is whole; else they only have to hear
        # that we go.
        needed = not self.switch and not self.broken
        linger_s = defaults.SHARD_LINGER_S if needed else defaults.CLOSE_LINGER_S
        self.endpoint.close(defaults.nanoseconds(linger_s))
        for work in list(self._pending.values()):
            self._advance(work, 0, closing=True)
        completer = self._completer
        if completer is not None and completer is not threading.current_thread():
            completer.join(defaults.CLOSE_LINGER_S)

    def _turn(self, work: Work, turn_ns: int) -> None:
        self._advance(work, turn_ns)
        if not work.settled:
            self.report_late()

    def _advance(self, work: Work, turn_ns: int, *, closing: bool = False) -> None:
        """Waits for the outcome and settles, or lets the thread that claimed it do so."""
        if work.claimed:
            self._wait_for_other_thread(work)
            return
        endpoint, sequence = self.endpoint, work.sequence
        try:
            outcome = endpoint.wait(sequence, turn_ns) if turn_ns else endpoint.test(sequence)
        except KeyError:
            self._wait_for_other_thread(work)
            return
        if outcome != PENDING or closing:
            self._settle(work, outcome == DONE)

    def _wait_for_other_thread(self, work: Work) -> None:
        with self.lock:
            self.lock.wait_for(lambda: work.settled, defaults.WAIT_TURN_S)

    def _settle(self, work: Work, ok: bool) -> None:
        with self.lock:
            if work.claimed:
                return
            work.claimed = True
        error = None
        if ok:
            work.transfer.write_back()
        else:
            done, total = self._progress(work)
            error = self._explain(work.what(), work.sequence, done, total, work.timeout_s)
        with self.lock:
            work.error = error
            work.settled = True
            self._pending.pop(work.sequence, None)
            self.endpoint.release(work.sequence)
            base = work.base
            self.lock.notify_all()
        complete(base, error, work.transfer.tensors)

    def _settle_finished(self) -> None:
        # A Work that nobody waits for would be kept for ever; the oldest finishes first.
        while self._pending:
            try:
                work = next(iter(self._pending.values()))
            except (StopIteration, RuntimeError):  # another thread settled it
                return
            if work.claimed or not self.poll(work):
                return

    def _explain(
        self,
        what: str,
        sequence: int,
        bytes_done: int = 0,
        bytes_total: int = 0,
        timeout_s: float = 0.0,
    ) -> NetfoldError:
        at = Situation(
            what=what,
            sequence=sequence,
            rank=self.rank,
            ranks=self.ranks,
            bytes_done=bytes_done,
            bytes_total=bytes_total,
            switch=self.switch,
            timeout_s=timeout_s,
            lease_s=self.lease_s,
        )
        self.last_error = explain(self.endpoint.failure(), at)
        return self.last_error

    def _progress(self, work: Work) -> tuple[int, int]:
        """Bytes done, and of all."""
        buffer = work.transfer.buffer
        return self.endpoint.bytes_done(work.sequence), buffer.numel() * buffer.element_size()

    def _gave_up(self, what: str, sequence: int, limit_s: float) -> NetfoldError:
        self.last_error = Timeout(
            f"{what} #{sequence} on rank {self.ranks[self.rank]}: wait() gave up after "
            f"{limit_s:g} s. {REFORM}.",
            sequence=sequence,
        )
        return self.last_error

    def _complete_futures(self) -> None:
        while not self._closed:
            for sequence in self.endpoint.next_watched(TURN_NS):
                work = self._pending.get(sequence)
                if work is not None:
                    self._advance(work, 0)
            if not self._closed:
                self.report_late()


@atexit.register
def _close_all() -> None:
    # Before the interpreter takes threads and modules away; tells the switch, so that the others
    # do not wait for a lease.
    for member in list(_live):
        member.close()
