"""Forming a group: who decides which path it takes, and how all ranks come to the same answer.

Everything goes through torch's own store, under a prefix of this formation. The group's rank 0
asks the switch first and publishes the verdict: after that the switch has the group's slots, so
no other rank can be refused for want of them. A rank that fails says so in the store, and all
others raise the same error instead of waiting.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from torch._C._distributed_c10d import PrefixStore, Store

from netfold import _native, config, defaults
from netfold._wire import CHILDREN_MAX, VERSION, Mode, Refusal
from netfold.errors import (
    ConfigError,
    NetfoldError,
    Refused,
    Timeout,
    Unreachable,
    from_code,
)
from netfold.say import say
from netfold.torch.failure import members, named
from netfold.torch.member import Member

IDENTITY, TROUBLE, TOLD = "identity", "trouble", "told"
# Why a switch may say no although nothing is wrong: a subgroup then goes without it.
NO_ROOM: Final = frozenset({Refusal.NO_SLOTS, Refusal.FULL, Refusal.DRAINING})
LOOPBACK: Final = ("127.", "::1")


@dataclass(frozen=True, kw_only=True)
class Membership:
    """Who we are in the group that forms."""

    name: str
    rank: int
    size: int
    ranks: Sequence[int]  # global rank of each member
    is_world: bool
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class Formation:
    """What came of it."""

    member: Member | None  # None: the switch takes no part
    reason: str  # why not
    address: str  # of the interface that leads to the switch; the inner backend binds to it
    mode: Mode  # of float32 sums, the same on all ranks
    store: Store  # of this formation only


@dataclass(frozen=True, kw_only=True, slots=True)
class _Identity:
    """What rank 0 publishes: the verdict, the job's incarnation and key, and how to add."""

    incarnation: int
    key: str  # hexadecimal
    mode: str
    reason: str = ""  # not empty: the group goes without the switch, and why


def form(store: Store, who: Membership) -> Formation:
    """Forms the group. Raises a NetfoldError, of the same type on all ranks."""
    # The same store may have served a group of this name before: each formation has its prefix.
    generation = store.add(f"netfold/formed/{who.rank}", 1)
    fresh = PrefixStore(f"netfold/{generation}/", store)
    if who.size == 1:
        return Formation(
            member=None,
            reason="a group of one",
            address="127.0.0.1",
            mode=config.from_environment().mode,
            store=fresh,
        )
    try:
        return _form(fresh, who)
    except BaseException as error:
        _tell_trouble(fresh, who, error)
        raise


def _form(store: Store, who: Membership) -> Formation:
    settings = config.from_environment()
    switch = config.require_switch(settings)
    host = config.resolve(switch)
    meeting = _Meeting(store, who, min(who.timeout_s, settings.join_timeout_s))
    source = _route(host, switch.port)
    store.set(f"address/{who.rank}", source)
    endpoint: _native.Endpoint | None = None
    reason = ""
    if who.size > CHILDREN_MAX:
        reason = f"a group of more than {CHILDREN_MAX} members"
    else:
        endpoint, reason = _join(meeting, settings, host)
    address = _address_for_peers(meeting, source)
    if endpoint is None:
        if who.rank == 0:
            say(f"group {who.name!r} ({named(who.ranks)}) goes through gloo: {reason}")
        return Formation(
            member=None, reason=reason, address=address, mode=settings.mode, store=store
        )
    member = Member(
        endpoint, rank=who.rank, ranks=who.ranks, switch=str(switch), lease_s=settings.lease_s
    )
    return Formation(member=member, reason="", address=address, mode=settings.mode, store=store)


def _join(
    meeting: _Meeting, settings: config.Config, host: str
) -> tuple[_native.Endpoint | None, str]:
    """The settled endpoint, or None and why the group goes without the switch."""
    who = meeting.who
    if who.rank == 0:
        identity = _Identity(
            incarnation=int.from_bytes(os.urandom(8), "big"),
            key=os.urandom(16).hex(),
            mode=settings.mode.name.lower(),
        )
    else:
        identity = _Identity(**json.loads(meeting.await_key(IDENTITY, "its rank 0")))
        if identity.mode != settings.mode.name.lower():
            raise ConfigError(
                f"NETFOLD_MODE is {settings.mode.name.lower()} here and {identity.mode} on rank "
                f"{who.ranks[0]}: set the same on all ranks"
            )
        if identity.reason:
            return None, identity.reason
    endpoint = _endpoint(settings, host, who, identity)
    try:
        reason = _decide(meeting, endpoint, identity) if who.rank == 0 else ""
        if not reason:
            _join_until(meeting, endpoint, lambda: False, frozenset())
    except BaseException:
        endpoint.close()
        raise
    if reason:
        endpoint.close()
        return None, reason
    return endpoint, ""


def _decide(meeting: _Meeting, endpoint: _native.Endpoint, identity: _Identity) -> str:
    """Rank 0 asks for the group's slots and tells the others; why there are none, or ""."""
    optional = frozenset() if meeting.who.is_world else NO_ROOM
    reason = _join_until(meeting, endpoint, lambda: endpoint.joined_ranks() != 0, optional)
    meeting.publish(IDENTITY, json.dumps(asdict(replace(identity, reason=reason))))
    return reason


def _endpoint(
    settings: config.Config, host: str, who: Membership, identity: _Identity
) -> _native.Endpoint:
    assert settings.switch is not None
    try:
        return _native.Endpoint(
            host=host,
            port=settings.switch.port,
            job=settings.job,
            incarnation=identity.incarnation,
            key=bytes.fromhex(identity.key),
            group=_group_id(who.name),
            rank=who.rank,
            size=who.size,
            secret=settings.secret,
            payload_bytes_max=settings.payload_bytes_max,
            window_max=settings.window_max,
            receive_buffer_bytes=defaults.RECEIVE_BUFFER_BYTES,
            offload=settings.offload,
            lease_ns=defaults.nanoseconds(settings.lease_s),
            heartbeat_ns=defaults.nanoseconds(min(defaults.HEARTBEAT_S, settings.lease_s / 5)),
            retransmit_initial_ns=defaults.nanoseconds(defaults.RETRANSMIT_INITIAL_S),
            retransmit_min_ns=defaults.nanoseconds(defaults.RETRANSMIT_MIN_S),
            late_after_ns=defaults.nanoseconds(defaults.LATE_AFTER_S),
            bind_device=settings.interface,
        )
    except OSError as error:
        raise Unreachable(
            f"the switch at {settings.switch} cannot be reached from here: {error}. Check "
            "NETFOLD_SWITCH and NETFOLD_IFNAME"
        ) from error


def _join_until(
    meeting: _Meeting,
    endpoint: _native.Endpoint,
    enough: Callable[[], bool],
    optional: frozenset[Refusal],
) -> str:
    """Joins until settled or `enough`: "". An `optional` refusal is returned, others raised."""
    who = meeting.who
    everyone = (1 << who.size) - 1
    turn_ns = defaults.nanoseconds(defaults.STORE_POLL_MIN_S)
    while True:
        verdict = endpoint.join(turn_ns)
        if verdict == "settled" or enough():
            return ""
        switch = str(endpoint.path()["peer"])
        if verdict == "refused":
            reason, version, detail = endpoint.refusal() or (0, 0, 0)
            text = f"the switch at {switch} refuses: {refusal_text(reason, version, detail)}"
            if reason in optional:
                return text
            own = who.ranks[who.rank]
            raise Refused(f"rank {own} of {who.size} cannot join: {text}", ranks=[own])
        if verdict in _NOT_THERE:
            raise Unreachable(_NOT_THERE[verdict].format(switch=switch))
        meeting.check(lambda: members(everyone & ~endpoint.joined_ranks(), who.ranks))
        turn_ns = min(2 * turn_ns, defaults.nanoseconds(defaults.STORE_POLL_MAX_S))


def refusal_text(reason: int, version: int, detail: int) -> str:
    """Why a switch says no, and what to do about it."""
    texts = {
        Refusal.VERSION: f"it speaks wire version {version} and this worker {VERSION}: install "
        "the same netfold on both",
        Refusal.SECRET: "it wants the secret it was started with: set NETFOLD_SECRET_FILE to the "
        "same file",
        Refusal.RANK_TAKEN: "another process has this rank already",
        Refusal.SIZE_DIFFERS: f"the others say the group has {detail} members",
        Refusal.NO_SLOTS: "its slot memory is full: start it with more --memory, or end another "
        "job",
        Refusal.FULL: "it serves as many jobs as it can: end one, or start another switch",
        Refusal.DRAINING: "it was told to stop and takes no new groups",
        Refusal.KEY_DIFFERS: "the job exists there with another key: choose another NETFOLD_JOB",
    }
    return texts[Refusal(reason)] if reason in set(Refusal) else f"reason {reason}"


_HINT = "Check NETFOLD_SWITCH, that `netfold switch` runs there, and that its UDP port is open"
_NOT_THERE: Final = {
    "unreachable": f"nothing listens at {{switch}}. {_HINT}",
    "silent": f"nothing answers at {{switch}}. {_HINT}",
    "lost": f"the switch at {{switch}} answered first and is silent now. {_HINT}",
}


class _Meeting:
    """Waiting for the others, with a deadline, lines about who is missing, and bad news."""

    def __init__(self, store: Store, who: Membership, limit_s: float) -> None:
        self.who = who
        self._store = store
        self._limit_s = limit_s
        self._started = time.monotonic()
        self._report_at = self._started + defaults.JOIN_REPORT_S

    def publish(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def await_key(self, key: str, whose: str) -> bytes:
        """Polls: a blocking wait of the store logs each turn and holds up Ctrl-C."""
        pause_s = defaults.STORE_POLL_MIN_S
        while not self._store.check([key]):
            self.check(lambda: [self.who.ranks[0]], whose)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, defaults.STORE_POLL_MAX_S)
        return self._store.get(key)

    def addresses(self) -> list[str]:
        """Where each rank sends from."""
        keys = [f"address/{rank}" for rank in range(self.who.size)]
        return [self.await_key(key, key).decode() for key in keys]

    def check(self, missing: Callable[[], list[int]], whose: str = "") -> None:
        """Raises what another rank reported, or Timeout; says who is missing now and then."""
        if self._store.check([TROUBLE]):
            told = json.loads(self._store.get(TROUBLE))
            self._store.add(TOLD, 1)
            raise from_code(told["code"], told["message"], told["ranks"])
        waited_s = time.monotonic() - self._started
        where = f"forming group {self.who.name!r} of {self.who.size}"
        if waited_s >= self._limit_s:
            raise Timeout(
                f"{where} took longer than {self._limit_s:g} s, missing {named(missing())}: did "
                "they start, with the same store and switch?",
                ranks=missing(),
            )
        if time.monotonic() >= self._report_at:
            self._report_at += defaults.JOIN_REPORT_S
            for_what = f"{whose}, " if whose else ""
            own = self.who.ranks[self.who.rank]
            say(f"rank {own} {where}: waiting for {for_what}{named(missing())} ({waited_s:.0f} s)")


def _tell_trouble(store: Store, who: Membership, error: BaseException) -> None:
    """Lets the others raise what we raise, and gives them a moment to read it."""
    own = who.ranks[who.rank]
    reason = f"rank {own} gave up forming the group: {error!r}"
    told: dict[str, object] = {"code": "aborted", "message": reason, "ranks": [own]}
    if isinstance(error, NetfoldError):
        message = error.message
        if isinstance(error, ConfigError):
            message = f"rank {own}: {message}"
        told = {"code": error.code, "message": message, "ranks": error.ranks}
    try:
        if store.check([TROUBLE]):
            return  # it came from there
        store.set(TROUBLE, json.dumps(told))
        deadline = time.monotonic() + defaults.TROUBLE_LINGER_S
        while time.monotonic() < deadline and store.add(TOLD, 0) < who.size - 1:
            time.sleep(defaults.STORE_POLL_MIN_S)
    except (RuntimeError, KeyboardInterrupt):
        return  # the store is gone, or the user is in a hurry


def _group_id(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def _route(host: str, port: int) -> str:
    """The address this machine sends from to reach `host`; nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError as error:
            raise Unreachable(
                f"no route to the switch at {host}: {error.strerror}. Check NETFOLD_SWITCH"
            ) from None
        return str(probe.getsockname()[0])


def _address_for_peers(meeting: _Meeting, source: str) -> str:
    """The address other ranks can reach us at.

    A switch on this very machine is reached through loopback, which is no address to give to
    workers on other machines (T01); those tell theirs, and a route to one of them has our own.
    """
    if not source.startswith(LOOPBACK):
        return source
    for other in meeting.addresses():
        if not other.startswith(LOOPBACK):
            return _route(other, 1)
    return source
