"""What collectives return: `Work` objects that raise our own errors.

Only a Python subclass of `dist.Work` with its own `wait` and a future made by `then(raise)` raises
in every caller: other ways of wrapping a future end in silent success or, under DDP, in a crash.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from netfold.errors import NetfoldError
    from netfold.torch.member import Member

Future = torch.futures.Future  # of the list of result tensors

NO_TIMEOUT = timedelta(0)  # torch's word for "the operation's own"


class Transfer:
    """The contiguous memory a collective runs on, as `wire` elements, and how its result gets into
    the tensors."""

    def __init__(self, tensors: Sequence[torch.Tensor], wire: torch.dtype) -> None:
        self.tensors = list(tensors)
        plain = [tensor.detach() for tensor in tensors]
        self._copied = len(plain) != 1 or not plain[0].is_contiguous() or plain[0].dtype != wire
        if not self._copied:
            self.buffer = plain[0]
        elif len(plain) == 1:
            self.buffer = plain[0].contiguous().view(-1).to(wire)
        else:
            self.buffer = torch.cat([tensor.reshape(-1) for tensor in plain]).to(wire)

    def write_back(self) -> None:
        """Copies the result where it belongs, unless it is there already."""
        if not self._copied:
            return
        pieces = torch.split(self.buffer, [tensor.numel() for tensor in self.tensors])
        for tensor, piece in zip(self.tensors, pieces, strict=True):
            tensor.detach().copy_(piece.view(tensor.shape))


class Work(dist.Work):
    """An all-reduce the native engine runs.

    Its group keeps it, and so the tensors, until the outcome is known: the engine writes into their
    memory whether or not the caller kept the Work.
    """

    def __init__(self, member: Member, transfer: Transfer, what: Callable[[], str]) -> None:
        super().__init__()
        self.member = member
        self.transfer = transfer
        self.what = what  # for errors; made only then
        self.timeout_s = 0.0
        self.sequence = 0  # set by Member.submit
        # All below are written by Member, under its lock.
        self.claimed = False  # a thread is finishing it
        self.settled = False
        self.error: NetfoldError | None = None
        self.base: Future[Any] | None = None
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Blocks, without the GIL, until the outcome.

        Raises the error of the collective, or Timeout after `timeout`, which breaks the group: the
        engine may not write into a tensor that its owner has given up.
        """
        if not self.settled:
            self.member.block(self, timeout)
        if self._future is not None and not self._future.done():
            self._wait_for_future()
        if self.error is not None:
            raise self.error
        return True

    def is_completed(self) -> bool:
        """Whether the outcome is known; never blocks."""
        return self.settled or self.member.poll(self)

    def is_success(self) -> bool:
        """Whether it is known to be a result."""
        return self.is_completed() and self.error is None

    def exception(self) -> NetfoldError | None:
        """The error it ended with, or None."""
        return self.error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """The tensors it was called with, reduced once wait() has returned."""
        return self.transfer.tensors

    def synchronize(self) -> None:
        """As wait()."""
        self.wait()

    def get_future(self) -> Future[Any]:
        """Completed by a thread of the group with [tensor], or with the error."""
        with self.member.lock:
            if self._future is None:
                self.base = Future()
                self._future = self.base.then(_raise_if_exception)
                late = self.settled
            else:
                return self._future
        if late:
            complete(self.base, self.error, self.transfer.tensors)
        else:
            self.member.watch(self)
        return self._future

    def _wait_for_future(self) -> None:
        # Another thread saw the outcome first and is about to complete the future: whoever has
        # waited finds it done.
        assert self._future is not None
        try:
            self._future.wait()
        except RuntimeError:
            return  # wait() raises the error itself


class DoneWork(dist.Work):
    """A collective with nothing to do."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = list(tensors)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:  # noqa: ARG002
        """Returns at once."""
        return True

    def is_completed(self) -> bool:
        """Always."""
        return True

    def is_success(self) -> bool:
        """Always."""
        return True

    def exception(self) -> None:
        """Never one."""
        return

    def result(self) -> list[torch.Tensor]:
        """The tensors as they were given."""
        return self._tensors

    def synchronize(self) -> None:
        """Returns at once."""

    def get_future(self) -> Future[Any]:
        """Completed already."""
        future: Future[Any] = Future()
        future.set_result(self._tensors)
        return future


class DelegatedWork(dist.Work):
    """A collective of the inner backend, which by itself would not notice that the group broke.

    With a transfer it runs on a contiguous copy: gloo reduces the memory under a tensor with gaps
    and gets it wrong without a word.
    """

    def __init__(
        self,
        inner: dist.Work,
        transfer: Transfer | None,
        member: Member | None,
        what: str,
        sequence: int,
    ) -> None:
        super().__init__()
        self._inner = inner
        self._transfer = transfer
        self._member = member
        self._what = what  # for errors
        self._sequence = sequence
        self._lock = threading.Lock()
        self._written = False

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Blocks until the inner backend is done or the group broke, whichever is first.

        Raises the group's error, the inner backend's, or Timeout after `timeout`.
        """
        if self._member is None:
            self._inner.wait(timeout)
        else:
            self._member.block_delegated(self._inner, self._what, self._sequence, timeout)
        self._write_back()
        return True

    def is_completed(self) -> bool:
        """As the inner backend's."""
        return bool(self._inner.is_completed())

    def is_success(self) -> bool:
        """As the inner backend's."""
        return bool(self._inner.is_success())

    def exception(self) -> Any:
        """As the inner backend's."""
        return self._inner.exception()

    def result(self) -> list[torch.Tensor]:
        """The tensors it was called with."""
        if self.is_completed() and self.is_success():
            self._write_back()
        return self._transfer.tensors if self._transfer else list(self._inner.result())

    def synchronize(self) -> None:
        """As wait()."""
        self.wait()

    def get_future(self) -> Future[Any]:
        """As the inner backend's, completed after the copies back."""
        transfer = self._transfer
        if transfer is None:
            return self._inner.get_future()

        def finish(inner: Future[Any]) -> list[torch.Tensor]:
            inner.value()
            self._write_back()
            return transfer.tensors

        return self._inner.get_future().then(finish)

    def _write_back(self) -> None:
        if self._transfer is not None:
            with self._lock:
                if not self._written:
                    self._transfer.write_back()
                    self._written = True


def complete(
    base: Future[Any] | None, error: BaseException | None, tensors: list[torch.Tensor]
) -> None:
    """Runs what hangs on the future, in this thread."""
    if base is not None:
        base.set_result(error if error is not None else tensors)


def _raise_if_exception(base: Future[Any]) -> Any:
    value = base.value()
    if isinstance(value, BaseException):
        raise value
    return value
