"""Forming a group: who decides which path it takes, and how all ranks come to the same answer.

Everything goes through torch's own store, under a prefix of this formation. The group's rank 0
asks the switches first and publishes the verdict: after that they have the group's slots, so no
other rank can be refused for want of them. Where no switch is named every rank serves a shard and
publishes where. A rank that fails says so in the store, and all others raise the same error
instead of waiting.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Final

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.constants import default_pg_timeout

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
from netfold.torch.path import speed_against_ring

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
    timeout: timedelta  # as torch says it


@dataclass(frozen=True, kw_only=True)
class Formation:
    """What came of it."""

    member: Member | None  # None: no aggregator takes part
    reason: str  # why not
    address: str  # of the interface that leads to the switch; the inner backend binds to it
    mode: Mode  # of float32 sums, the same on all ranks
    timeout: timedelta  # of a collective that is called without one
    store: Store  # of this formation only
    switches: Sequence[str] = ()  # none: shards

    def against_ring(self, size: int) -> float | None:
        """Expected speed over a ring's, at best: with a port for each worker."""
        if self.member is None:
            return None
        return speed_against_ring(size, size) if self.switches else 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Identity:
    """What rank 0 publishes: the verdict, the job and its key, and how to add."""

    job: str
    incarnation: int
    key: str  # hexadecimal
    mode: str
    switches: int  # how many are named; 0: shards
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
            timeout=_timeout(who, config.from_environment()),
            store=fresh,
        )
    try:
        return _form(fresh, who)
    except BaseException as error:
        _tell_trouble(fresh, who, error)
        raise


def _form(store: Store, who: Membership) -> Formation:
    settings = config.from_environment()
    timeout = _timeout(who, settings)
    limit_s = min(timeout.total_seconds(), settings.join_timeout_s)
    meeting = _Meeting(store, who, limit_s, shards=not settings.switches)
    switches = [(config.resolve(switch), switch.port) for switch in settings.switches]
    source = _route(*switches[0]) if switches else _own_address(settings, store)
    store.set(f"address/{who.rank}", source)
    # A shard is where the others reach us; a switch can be asked before they are there.
    address = source if switches else _address_for_peers(meeting, source)
    endpoint: _native.Endpoint | None = None
    if who.size > CHILDREN_MAX:
        reason = f"a group of more than {CHILDREN_MAX} members"
    else:
        endpoint, reason = _join(meeting, settings, switches, address)
    address = _address_for_peers(meeting, address)
    names = [str(switch) for switch in settings.switches]
    member = None
    if endpoint is not None:
        member = Member(
            endpoint,
            rank=who.rank,
            ranks=who.ranks,
            switch=", ".join(names),
            lease_s=settings.lease_s,
        )
    elif who.rank == 0:
        say(f"group {who.name!r} ({named(who.ranks)}) goes through gloo: {reason}")
    return Formation(
        member=member,
        reason=reason,
        address=address,
        mode=settings.mode,
        timeout=timeout,
        store=store,
        switches=names,
    )


def _timeout(who: Membership, settings: config.Config) -> timedelta:
    # Torch does not tell its default from a script's wish; a script that wishes for exactly the
    # default gets NETFOLD_TIMEOUT.
    if who.timeout != default_pg_timeout or settings.timeout_s is None:
        return who.timeout
    return timedelta(seconds=settings.timeout_s)


def _join(
    meeting: _Meeting, settings: config.Config, switches: list[tuple[str, int]], address: str
) -> tuple[_native.Endpoint | None, str]:
    """The settled endpoint, or None and why the group goes without aggregators."""
    identity = _identity(meeting, settings)
    if identity.reason:
        return None, identity.reason
    endpoint = _endpoint(meeting.who, settings, switches, address, identity)
    try:
        reason = ""
        if not switches:
            endpoint.connect(_publish_shard(meeting, endpoint, address))
        elif meeting.who.rank == 0:
            reason = _decide(meeting, endpoint, identity)
        if not reason:
            _join_until(meeting, endpoint, lambda: False, frozenset())
    except BaseException:
        endpoint.close()
        raise
    if reason:
        endpoint.close()
        return None, reason
    return endpoint, ""


def _identity(meeting: _Meeting, settings: config.Config) -> _Identity:
    """What rank 0 draws, or what it published."""
    mode, count = settings.mode.name.lower(), len(settings.switches)
    if meeting.who.rank == 0:
        identity = _Identity(
            job=settings.job,
            incarnation=int.from_bytes(os.urandom(8), "big"),
            key=os.urandom(16).hex(),
            mode=mode,
            switches=count,
        )
        if not count:  # else after the switches have said yes
            meeting.publish(IDENTITY, json.dumps(asdict(identity)))
        return identity
    identity = _Identity(**json.loads(meeting.await_key(IDENTITY, "its rank 0")))
    first = meeting.who.ranks[0]
    for name, here, there in (
        ("NETFOLD_MODE is", mode, identity.mode),
        ("NETFOLD_JOB is", repr(settings.job), repr(identity.job)),
        ("the number of switches in NETFOLD_SWITCH is", str(count), str(identity.switches)),
    ):
        if here != there:
            raise ConfigError(
                f"{name} {here} here and {there} on rank {first}: set the same on all ranks"
            )
    return identity


def _publish_shard(
    meeting: _Meeting, endpoint: _native.Endpoint, address: str
) -> list[tuple[str, int, int]]:
    """Says where our shard is; where all are: (host, port, rank)."""
    who = meeting.who
    meeting.publish(f"shard/{who.rank}", json.dumps([address, endpoint.port]))
    places = []
    for rank in range(who.size):
        host, port = json.loads(meeting.await_key(f"shard/{rank}", "", who.ranks[rank]))
        places.append((host, port, rank))
    return places


def _decide(meeting: _Meeting, endpoint: _native.Endpoint, identity: _Identity) -> str:
    """Rank 0 asks for the group's slots and tells the others; why there are none, or ""."""
    optional = frozenset() if meeting.who.is_world else NO_ROOM
    reason = _join_until(meeting, endpoint, lambda: endpoint.joined_ranks() != 0, optional)
    meeting.publish(IDENTITY, json.dumps(asdict(replace(identity, reason=reason))))
    return reason


def _endpoint(
    who: Membership,
    settings: config.Config,
    switches: list[tuple[str, int]],
    address: str,
    identity: _Identity,
) -> _native.Endpoint:
    """Connected to the switches, or with a shard and to be connected."""
    key = bytes.fromhex(identity.key)
    host, port = switches[0] if len(switches) == 1 else (address, 0)
    # Strangers have no business with a worker's shard: what the store tells members is its secret.
    secret = settings.secret if switches else hashlib.sha256(b"netfold shard\0" + key).digest()[:16]
    try:
        endpoint = _native.Endpoint(
            host=host,
            port=port,
            job=settings.job,
            incarnation=identity.incarnation,
            key=key,
            group=_group_id(who.name),
            rank=who.rank,
            size=who.size,
            secret=secret,
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
            shard=not switches,
        )
        if len(switches) > 1:
            endpoint.connect([(host, port, -1) for host, port in switches])
    except OSError as error:
        what = ", ".join(str(switch) for switch in settings.switches) or f"{address} (our own)"
        raise Unreachable(
            f"{what} cannot be used from here: {error}. Check NETFOLD_SWITCH and NETFOLD_IFNAME"
        ) from error
    return endpoint


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
            hint = _SHARDS_HINT if meeting.shards else _HINT
            raise Unreachable(f"{_NOT_THERE[verdict].format(switch=switch)}. {hint}")
        meeting.check(lambda: members(everyone & ~endpoint.joined_ranks(), who.ranks))
        turn_ns = min(2 * turn_ns, defaults.nanoseconds(defaults.STORE_POLL_MAX_S))


def refusal_text(reason: int, version: int, detail: int) -> str:
    """Why a switch says no, and what to do about it."""
    texts = {
        Refusal.VERSION: f"it speaks wire version {version} and this worker {VERSION}: install "
        "the same netfold on both",
        Refusal.SECRET: "it wants the secret it was started with: set NETFOLD_SECRET_FILE to the "
        "same file"
        if detail
        else "it has no secret and this worker has one: start it with --secret-file, or unset "
        "NETFOLD_SECRET_FILE",
        Refusal.RANK_TAKEN: "another process has this rank already",
        Refusal.SIZE_DIFFERS: f"the others say the group has {detail} members",
        Refusal.NO_SLOTS: "its slot memory is full: start it with more --memory, or end another "
        "job",
        Refusal.FULL: "it serves as many jobs as it can: end one, or start another switch",
        Refusal.DRAINING: "it was told to stop and takes no new groups",
        Refusal.KEY_DIFFERS: "the job exists there with another key: choose another NETFOLD_JOB",
    }
    return texts[Refusal(reason)] if reason in set(Refusal) else f"reason {reason}"


_HINT: Final = (
    "Check NETFOLD_SWITCH, that `netfold switch` runs there, and that its UDP port is open"
)
_SHARDS_HINT: Final = (
    "UDP must pass between the workers' hosts: is there a firewall, or another interface "
    "(NETFOLD_IFNAME)?"
)
_NOT_THERE: Final = {
    "unreachable": "nothing listens at {switch}",
    "silent": "nothing answers at {switch}",
    "lost": "{switch} answered first and is silent now",
}


class _Meeting:
    """Waiting for the others, with a deadline, lines about who is missing, and bad news."""

    def __init__(self, store: Store, who: Membership, limit_s: float, *, shards: bool) -> None:
        self.who = who
        self.shards = shards
        self._store = store
        self._limit_s = limit_s
        self._started = time.monotonic()
        self._report_at = self._started + defaults.JOIN_REPORT_S

    def publish(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def await_key(self, key: str, whose: str, rank: int | None = None) -> bytes:
        """Polls: a blocking wait of the store logs each turn and holds up Ctrl-C."""
        pause_s = defaults.STORE_POLL_MIN_S
        missing = self.who.ranks[0] if rank is None else rank
        while not self._store.check([key]):
            self.check(lambda: [missing], whose)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, defaults.STORE_POLL_MAX_S)
        return self._store.get(key)

    def addresses(self) -> list[str]:
        """Where each rank sends from."""
        keys = [f"address/{rank}" for rank in range(self.who.size)]
        waits = zip(keys, self.who.ranks, strict=True)
        return [self.await_key(key, "", rank).decode() for key, rank in waits]

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
                f"no route to {host}: {error.strerror}. Check NETFOLD_SWITCH"
            ) from None
        return config.numeric_host(probe.getsockname())


def _own_address(settings: config.Config, store: Store) -> str:
    """Where other workers reach us: of NETFOLD_IFNAME, or of the route to the store's host."""
    if settings.interface:
        return config.address_of_interface(settings.interface)
    host = _store_host(store) or os.environ.get("MASTER_ADDR", "")
    return _route(config.resolve(config.Address(host=host, port=1)), 1) if host else "127.0.0.1"


def _store_host(store: Store) -> str:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return str(getattr(store, "host", ""))


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
