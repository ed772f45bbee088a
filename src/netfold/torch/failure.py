"""From the engine's verdict to the error a user reads. Pure, so that every text can be tested."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from netfold._wire import Cause, DType, Kind, Mode, Op
from netfold.errors import Aborted, AggregatorLost, Mismatch, NetfoldError, PeerLost, Timeout

REFORM = "The group is broken on all ranks: destroy it and form it again"


class Breakage(Protocol):
    """The fields of netfold._native.Failure."""

    cause: int
    ranks: int
    added: int
    chunk: int
    epoch: int
    collective: int
    rank_a: int
    rank_b: int
    collective_a: int
    collective_b: int
    fingerprint_a: int
    fingerprint_b: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """Where a rank stood when its collective failed."""

    what: str  # "all_reduce SUM float32[1000]"
    sequence: int
    rank: int  # ours, in the group
    ranks: Sequence[int]  # global rank of each member
    bytes_done: int
    bytes_total: int  # 0: nobody knows how far it came
    switch: str
    timeout_s: float
    lease_s: float


def explain(failure: Breakage | None, at: Situation) -> NetfoldError:
    """The error to raise for a failed collective."""
    cause = failure.cause if failure else 0
    if failure is None:
        return _error(Aborted, at, "its group was closed", ())
    if cause == Cause.GONE:
        return _gone(failure, at)
    if cause == Cause.MISMATCH:
        return _mismatch(failure, at)
    if cause == Cause.TIMEOUT:
        return _timeout(failure, at)
    if cause == Cause.ABORT:
        return _aborted(failure, at)
    if cause == Cause.DRAIN:
        why = f"the switch at {at.switch} was told to stop"
        return _error(AggregatorLost, at, why, (), "Start a switch there and restart the job")
    why = f"the switch at {at.switch} did not answer for {at.lease_s:g} s"
    do = "Check that it runs (`netfold switch`) and that its UDP port is open, restart the job"
    return _error(AggregatorLost, at, why, (), do)


def describe(fingerprint: int) -> str:
    """What a rank believed a collective to be: "all_reduce SUM float32[1000]"."""
    kind, op, dtype, mode = (fingerprint >> shift & 15 for shift in (60, 56, 52, 48))
    elements = fingerprint & (1 << 48) - 1
    name = Kind(kind).name.lower() if kind in set(Kind) else f"kind {kind}"
    if kind != Kind.ALL_REDUCE:
        return f"{name.removeprefix('delegated_')} through gloo"
    op_name = Op(op).name if op in set(Op) else f"op {op}"
    dtype_name = DType(dtype).name.lower() if dtype in set(DType) else f"dtype {dtype}"
    how = " as fixed32" if mode == Mode.FIXED32 else ""
    return f"{name} {op_name} {dtype_name}[{elements}]{how}"


def members(bitmap: int, ranks: Sequence[int]) -> list[int]:
    """Global ranks of the members a bitmap names."""
    return [rank for index, rank in enumerate(ranks) if bitmap >> index & 1]


def named(ranks: Iterable[int]) -> str:
    """ "rank 3" or "ranks 1, 3"."""
    numbers = [str(rank) for rank in ranks]
    return f"rank{'s' if len(numbers) != 1 else ''} {', '.join(numbers) or 'unknown'}"


def _error(
    kind: type[NetfoldError],
    at: Situation,
    why: str,
    blamed: Iterable[int],
    do: str = REFORM,
) -> NetfoldError:
    done = f"; {at.bytes_done:,} of {at.bytes_total:,} bytes done" if at.bytes_total else ""
    text = f"{at.what} #{at.sequence} failed on rank {at.ranks[at.rank]}: {why}{done}. {do}."
    return kind(text, sequence=at.sequence, ranks=blamed)


def _gone(failure: Breakage, at: Situation) -> NetfoldError:
    gone = members(failure.ranks, at.ranks)
    if failure.ranks >> at.rank & 1:
        why = (
            f"this rank was declared gone in epoch {failure.epoch}: the switch heard nothing of it "
            f"for {at.lease_s:g} s"
        )
        return _error(PeerLost, at, why, gone, "Was it stopped, swapped out or cut off? " + REFORM)
    why = f"{named(gone)} {'is' if len(gone) == 1 else 'are'} gone (ended, or silent for a lease)"
    return _error(PeerLost, at, why, gone, f"See the log of {named(gone)}. {REFORM}")


def _missing(failure: Breakage, at: Situation) -> list[int]:
    everyone = (1 << len(at.ranks)) - 1
    return members(everyone & ~failure.added, at.ranks)


def _timeout(failure: Breakage, at: Situation) -> NetfoldError:
    missing = _missing(failure, at)
    gave_up = named(members(failure.ranks, at.ranks))
    why = f"#{failure.collective} timed out on {gave_up}, missing {named(missing)}"
    if failure.ranks >> at.rank & 1 and at.timeout_s:
        why = f"it took longer than {at.timeout_s:g} s, missing {named(missing)}"
    verb = "Is" if len(missing) == 1 else "Are"
    return _error(Timeout, at, why, missing, f"{verb} {named(missing)} slow or stuck? {REFORM}")


def _aborted(failure: Breakage, at: Situation) -> NetfoldError:
    by = members(failure.ranks, at.ranks)
    if failure.ranks >> at.rank & 1 or not by:
        return _error(Aborted, at, "this rank aborted or closed the group", by or ())
    return _error(Aborted, at, f"{named(by)} aborted the group", by)


def _mismatch(failure: Breakage, at: Situation) -> NetfoldError:
    pair = [
        (failure.rank_a, failure.fingerprint_a, failure.collective_a),
        (failure.rank_b, failure.fingerprint_b, failure.collective_b),
    ]
    ranks = [at.ranks[rank] if rank < len(at.ranks) else rank for rank, _, _ in pair]
    beliefs = "; ".join(
        f"rank {rank}: {describe(print_)} #{number}"
        for rank, (_, print_, number) in zip(ranks, pair, strict=True)
    )
    do = f"All ranks must call the same collectives in the same order. {REFORM}"
    return _error(Mismatch, at, f"ranks disagree ({beliefs})", ranks, do)
