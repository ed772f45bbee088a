"""The process group: all-reduce through the switch, everything else through an inner gloo.

The inner backend is registered on the group itself, so that what is not overridden here reaches
it through torch's base class, also from C++.
"""

from __future__ import annotations

import atexit
import ctypes
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from netfold.errors import NetfoldError, Unsupported
from netfold.say import say
from netfold.torch import path
from netfold.torch.accept import EMPTY_FINGERPRINT, Kind, accepted, delegated_fingerprint
from netfold.torch.formation import Formation, Membership, form
from netfold.torch.work import DelegatedWork, DoneWork, Transfer

# In a group of one these change nothing.
_IDENTITY: Final = frozenset(
    {Kind.SUM, Kind.AVG, Kind.MIN, Kind.MAX, Kind.PRODUCT, Kind.BAND, Kind.BOR, Kind.BXOR}
)
# Collectives that every member calls, so they take a number: our name and gloo's. Torch 2.13
# renamed some; both names are here where gloo has the operation.
_NUMBERED: Final = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "allgather",
    "allgather_coalesced": "allgather_coalesced",
    "all_gather_single": "_allgather_base",
    "_allgather_base": "_allgather_base",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "_reduce_scatter_base",
    "_reduce_scatter_base": "_reduce_scatter_base",
    "alltoall": "alltoall",
    "alltoall_base": "alltoall_base",
    "all_to_all_single": "alltoall_base",
    "barrier": "barrier",
}
# Between two members: numbers of the others would not move.
_POINT_TO_POINT: Final = ("send", "recv", "recv_anysource")
_IN_PLACE: Final = frozenset({"broadcast", "reduce", "allreduce", "allreduce_coalesced"})
_live: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


class ProcessGroup(dist.ProcessGroup):
    """One group of ranks, as torch.distributed sees it."""

    def __init__(self, formation: Formation, who: Membership) -> None:
        # The overload for subclasses in Python takes no store; the stubs do not know it.
        super().__init__(who.rank, who.size)  # type: ignore[call-arg]
        self._member = formation.member
        self._accepted = accepted(formation.mode)
        self._path = path.SWITCH if formation.switches else path.SHARDS
        self._usage = path.open_usage(who.name, who.ranks, formation.against_ring(who.size))
        self._why_not = formation.reason
        self._inner = _inner_gloo(formation, who)
        self._running: list[dist.Work] = []  # of the inner backend
        backend_type = dist.ProcessGroup.BackendType.GLOO
        self._set_default_backend(backend_type)
        self._register_backend(torch.device("cpu"), backend_type, self._inner)
        _live.add(self)

    def getBackendName(self) -> str:  # noqa: N802 (torch's C++ calls it)
        """ "netfold"."""
        return "netfold"

    @property
    def last_error(self) -> NetfoldError | None:
        """The last error of a collective here; DDP hides its type in a RuntimeError."""
        return self._member.last_error if self._member else None

    def allreduce(  # type: ignore[override]
        self,
        tensors: torch.Tensor | Sequence[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> dist.Work:
        """Reduces in place over all members; see torch.distributed.all_reduce."""
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        return self._reduce(tensors, _all_reduce_options(opts, op, timeout), "allreduce")

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> dist.Work:
        """Reduces several tensors of one dtype as one collective of all their elements."""
        return self._reduce(tensors, _all_reduce_options(opts, None, None), "allreduce_coalesced")

    def abort(self) -> None:
        """Breaks the group on all members: what is pending anywhere raises Aborted. Idempotent."""
        if self._member is not None:
            self._member.abort()

    def shutdown(self) -> None:
        """Leaves the group within a second. Idempotent, in any state."""
        self._abandon_stuck()
        if self._member is not None:
            self._member.close()
        path.close_usage(self._usage)
        self._inner.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        """What a collective may take when it is called without a timeout."""
        self._inner._set_default_timeout(timeout)

    def _abandon_stuck(self) -> None:
        """Keeps the inner backend for ever if the group broke in one of its collectives: its
        destructor would wait for peers that do not come."""
        stuck = any(not work.is_completed() for work in self._running)
        if stuck and self._member is not None and self._member.broken:
            self._running.clear()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._inner))

    def _reduce(self, tensors: Sequence[torch.Tensor], opts: Any, name: str) -> dist.Work:
        kind = opts.reduceOp.op
        first = tensors[0] if tensors else None
        if first is None or not _dense_on_cpu(tensors):
            return self._delegate_reduce(tensors, opts, name, "not dense")
        if kind == Kind.AVG and not first.dtype.is_floating_point:
            raise Unsupported(
                f"all_reduce AVG of {str(first.dtype)[6:]}: the average of integers is none; use "
                "SUM and divide"
            )
        size = first.numel() if len(tensors) == 1 else sum(tensor.numel() for tensor in tensors)
        size_bytes = size * first.element_size()
        if self.size() == 1 and kind in _IDENTITY:
            self._usage.count(path.LOCAL, size_bytes, self._why_not)
            return DoneWork(tensors)
        if size == 0:
            return self._empty(tensors)
        numbers = self._accepted.get((first.dtype, kind))
        member = self._member
        if member is None or numbers is None or not _one_dtype(tensors):
            reason = self._why_not or f"{str(first.dtype)[6:]} {kind.name}"
            return self._delegate_reduce(tensors, opts, name, reason)
        work = member.submit(
            Transfer(tensors, numbers.wire),
            numbers,
            _describer(kind, first.dtype, size),
            self._timeout_s(opts),
            not opts.asyncOp,
        )
        self._usage.count(self._path, size_bytes)
        return work

    def _empty(self, tensors: Sequence[torch.Tensor]) -> dist.Work:
        if self._member is not None:
            self._member.skip("all_reduce of no elements", EMPTY_FINGERPRINT)
        self._usage.count(path.LOCAL, 0, "no elements")
        return DoneWork(tensors)

    def _delegate_reduce(
        self, tensors: Sequence[torch.Tensor], opts: Any, name: str, reason: str
    ) -> dist.Work:
        return self._delegate(name, name, (list(tensors), opts), {}, reason)

    def _delegate(
        self, name: str, inner_name: str, args: Sequence[Any], kwargs: Any, reason: str = ""
    ) -> dist.Work:
        sequence = self._number(name)
        self._usage.count(
            path.GLOO, _bytes_in([*args, *kwargs.values()]), reason or self._why_not or name
        )
        run: Callable[..., dist.Work] = getattr(self._inner, inner_name)
        if name in _POINT_TO_POINT:
            return run(*args, **kwargs)
        transfer = None
        if name == "reduce" and self.rank() != args[1].rootRank:
            # Gloo leaves partial sums on those on the way to the target (T42).
            args = [[tensor.clone() for tensor in args[0]], *args[1:]]
        elif name in _IN_PLACE and args and _has_gaps(args[0]) and _one_dtype(args[0]):
            transfer = Transfer(args[0], args[0][0].dtype)
            args = [[transfer.buffer], *args[1:]]
        inner = run(*args, **kwargs)
        self._running = [work for work in self._running if not work.is_completed()]
        self._running.append(inner)
        return DelegatedWork(inner, transfer, self._member, name, sequence)

    def _number(self, name: str) -> int:
        """Of a delegated collective; 0: it has none."""
        if self._member is None or name in _POINT_TO_POINT:
            return 0
        return self._member.skip(name, delegated_fingerprint(name))

    def _timeout_s(self, opts: Any) -> float:
        own: float = opts.timeout.total_seconds()  # not above 0: the group's
        seconds: float = own if own > 0 else self._inner.options._timeout.total_seconds()
        return seconds


def create_group(options: Any, pg_options: Any = None) -> ProcessGroup:
    """Forms a group; torch calls it on every member. Raises a NetfoldError."""
    if pg_options is not None:
        raise Unsupported("netfold takes no pg_options: settings are NETFOLD_* variables")
    ranks = list(options.global_ranks_in_group)
    who = Membership(
        name=str(options.group_id),
        rank=options.group_rank,
        size=options.group_size,
        ranks=ranks or list(range(options.group_size)),
        is_world=not ranks,
        timeout=options.timeout,
    )
    formation = form(options.store, who)
    group = ProcessGroup(formation, who)
    member = formation.member
    if member is not None and who.is_world and who.rank == 0:
        say(
            path.start_line(
                formation.switches,
                member.endpoint.path(),
                who.size,
                formation.mode,
                formation.address,
            )
        )
    return group


def _inner_gloo(formation: Formation, who: Membership) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    # Left alone, gloo takes what the host name resolves to, often 127.0.1.1 (T01). Lazily: most
    # groups never use most connections.
    options._devices = [gloo.create_device(hostname=formation.address, lazy_init=True)]
    options._timeout = formation.timeout
    store = PrefixStore("gloo/", formation.store)
    inner = gloo(store, who.rank, who.size, options)
    inner.options.global_ranks_in_group = [] if who.is_world else list(who.ranks)
    inner.options.group_name = who.name
    inner._set_sequence_number_for_group()
    return inner


def _all_reduce_options(opts: Any, op: Any, timeout: timedelta | None) -> Any:
    if opts is not None and hasattr(opts, "reduceOp"):
        return opts
    made = dist.AllreduceOptions()
    chosen = op if op is not None else opts
    if chosen is not None:
        made.reduceOp = chosen
    if timeout is not None:
        made.timeout = timeout
    return made


def _dense_on_cpu(tensors: Sequence[torch.Tensor]) -> bool:
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise Unsupported(
                f"all_reduce of a tensor on {tensor.device}: netfold takes CPU tensors; copy it "
                "to the CPU, or use nccl for it"
            )
        if tensor.layout != torch.strided:
            return False
        if any(
            step == 0 < count - 1 for count, step in zip(tensor.shape, tensor.stride(), strict=True)
        ):
            raise Unsupported(
                "all_reduce of an expanded tensor, whose elements share memory: call .contiguous()"
            )
    return True


def _one_dtype(tensors: Sequence[torch.Tensor]) -> bool:
    return len(tensors) == 1 or len({tensor.dtype for tensor in tensors}) == 1


def _has_gaps(tensors: Any) -> bool:
    return isinstance(tensors, (list, tuple)) and any(
        isinstance(tensor, torch.Tensor)
        and tensor.layout == torch.strided
        and not tensor.is_contiguous()
        for tensor in tensors
    )


def _describer(kind: Any, dtype: torch.dtype, size: int) -> Callable[[], str]:
    return lambda: f"all_reduce {kind.name} {str(dtype)[6:]}[{size}]"


def _bytes_in(values: Iterable[Any]) -> int:
    total = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.layout == torch.strided:
                total += value.numel() * value.element_size()
        elif isinstance(value, (list, tuple)):
            total += _bytes_in(value)
    return total


def _delegates() -> None:
    """Gives ProcessGroup a method for each delegated collective: it counts, then calls gloo."""

    def add(name: str, inner_name: str) -> None:
        def method(self: ProcessGroup, *args: Any, **kwargs: Any) -> dist.Work:
            return self._delegate(name, inner_name, args, kwargs)

        method.__name__ = name
        method.__qualname__ = f"ProcessGroup.{name}"
        method.__doc__ = f"torch's {name}, through the inner gloo."
        setattr(ProcessGroup, name, method)

    for name, inner_name in _NUMBERED.items():
        add(name, inner_name)
    for name in _POINT_TO_POINT:
        add(name, name)


_delegates()


@atexit.register
def _abandon_stuck() -> None:
    for group in list(_live):
        group._abandon_stuck()
