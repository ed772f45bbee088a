"""Bytes from strangers and from bad networks: counted, answered or dropped, never harmful."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from netfold import _native, _wire
from netfold._native import Endpoint, SwitchServer
from netfold._wire import PacketType, Refusal
from tests.cluster import outcomes, ranks, running_switch

KEY = bytes(range(16))
FIELDS = dict.fromkeys(_wire.FIELD_OFFSETS, 0) | {"version": _wire.VERSION}
SECOND = 1_000_000_000
Change = Callable[[bytes, int], bytes]


def packet(kind: int, payload: bytes = b"", key: bytes | None = None, **fields: int) -> bytes:
    names = {name: value for name, value in FIELDS.items() if name not in ("magic", "crc", "tag")}
    given = {**names, "type": kind, "elements": len(payload), **fields}
    return _native.seal_packet(given, payload, key)


class Relay:
    """Forwards datagrams between workers and a switch, changes them, and its ports on demand."""

    def __init__(self, address: tuple[str, int], change: Change) -> None:
        self.switch = address
        self.change = change
        self.front = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.front.bind(("127.0.0.1", 0))
        self.backs: dict[Any, socket.socket] = {}
        self.passed = 0
        self.ended = threading.Event()
        self.lock = threading.Lock()
        threading.Thread(target=self._up, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.front.getsockname()[1]}"

    def rebind(self) -> None:
        """As a NAT whose entries timed out: every worker gets another source port."""
        with self.lock:
            self.backs.clear()

    def _up(self) -> None:
        while not self.ended.is_set():
            data, worker = self.front.recvfrom(65536)
            with self.lock:
                if worker not in self.backs:
                    back = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                    back.connect(self.switch)
                    self.backs[worker] = back
                    threading.Thread(target=self._down, args=(back, worker), daemon=True).start()
                back = self.backs[worker]
            self.passed += 1
            back.send(self.change(data, self.passed))

    def _down(self, back: socket.socket, worker: Any) -> None:
        while not self.ended.is_set():
            self.front.sendto(self.change(back.recv(65536), self.passed), worker)


@contextmanager
def relay(address: tuple[str, int], change: Change = lambda data, _: data) -> Iterator[Relay]:
    found = Relay(address, change)
    try:
        yield found
    finally:
        found.ended.set()


def endpoint(port: int, rank: int, **more: Any) -> Endpoint:
    options = {"job": "test", "incarnation": 1, "key": KEY, "group": 1, "size": 2, **more}
    return Endpoint(host="127.0.0.1", port=port, rank=rank, **options)


def test_workers_are_known_by_key_and_rank_not_by_address(tmp_path: Path) -> None:
    """T04: behind a NAT that gives them new ports while the job runs."""
    with (
        running_switch(tmp_path) as switch,
        relay(switch.host_port) as between,
        ranks("steps", 2, between.address, arguments=("60",)) as members,
    ):
        for member in members:
            assert member.read()["half"]
        between.rebind()
        for member in members:
            member.go_on()
        for member in members:
            assert member.read()["counters"]["collectives_ok"] == 60
            assert member.end() == 0


def test_corrupted_packets_are_dropped_and_the_sums_are_right(tmp_path: Path) -> None:
    """T59: one packet in twenty has a flipped bit, with a right UDP checksum."""
    chance = random.Random(1)

    def corrupt(data: bytes, _: int) -> bytes:
        if chance.random() >= 0.05:
            return data
        changed = bytearray(data)
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return bytes(changed)

    with running_switch(tmp_path) as switch, relay(switch.host_port, corrupt) as between:
        lines = outcomes("train", 2, between.address)
        assert all(line["worst"] < 1e-6 for line in lines)


def test_a_job_runs_on_under_a_flood_of_foreign_packets(tmp_path: Path) -> None:
    """T65: noise, truncated and malformed packets, real ones with wrong tags."""
    chance = random.Random(2)
    with (
        running_switch(tmp_path) as switch,
        ranks("steps", 2, switch.address, arguments=("100",)) as members,
    ):
        for member in members:
            member.read()
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for _ in range(20_000):
            sender.sendto(noise(chance), switch.host_port)
        for member in members:
            member.go_on()
        for member in members:
            assert member.read()["counters"]["collectives_ok"] == 100


def noise(chance: random.Random) -> bytes:
    kind = chance.randrange(4)
    if kind == 0:
        return chance.randbytes(chance.randrange(200))
    header = struct.pack(">HB", _wire.MAGIC, _wire.VERSION) + chance.randbytes(61)
    if kind == 1:
        return header[: chance.randrange(64)]
    if kind == 2:
        return header + chance.randbytes(chance.randrange(100))
    stream, chunk = chance.getrandbits(32), chance.getrandbits(4)
    return packet(
        PacketType.DATA, bytes(8), chance.randbytes(16), stream=stream, chunk=chunk, dtype=0
    )


def test_every_kind_of_bad_packet_has_a_counter() -> None:
    server = SwitchServer(host="127.0.0.1")
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(("127.0.0.1", server.port))
    good = packet(PacketType.HELLO, bytes(8))
    sender.settimeout(5)
    for bad in (b"", b"short", bytes(64), good[:-1], packet(PacketType.PROBE, stream=5)):
        sender.send(bad)
    sender.send(packet(PacketType.HELLO, bytes(8), dtype=_wire.DType.INT64))
    sender.send(good)
    answer = sender.recv(2048)  # all before it has been handled
    assert len(answer) <= len(good), "a switch is no reflector"
    counters = server.counters()
    assert counters["foreign"] >= 1
    assert counters["bad_crc"] >= 1
    assert counters["malformed"] >= 1
    assert counters["unknown_stream"] == 1
    server.stop()


def test_another_wire_version_is_refused_by_name() -> None:
    """T10, at the switch: a Hello of version 2 hears which version is spoken here."""
    server = SwitchServer(host="127.0.0.1")
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(("127.0.0.1", server.port))
    sender.settimeout(5)
    sender.send(packet(PacketType.HELLO, bytes(8), version=2, counter=77))
    verdict, fields = _native.decode_packet(sender.recv(2048), None)
    assert verdict == "ok"
    assert fields["type"] == PacketType.REFUSED
    assert fields["counter"] == 77
    server.stop()


def test_a_worker_says_that_the_switch_speaks_another_version() -> None:
    """T10, at the worker: one sentence, on every rank."""
    fake = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    fake.bind(("127.0.0.1", 0))
    fake.settimeout(0.2)
    ended = threading.Event()

    def answer() -> None:
        while not ended.is_set():
            try:
                data, worker = fake.recvfrom(2048)
            except TimeoutError:
                continue
            counter = struct.unpack_from(">I", data, _wire.FIELD_OFFSETS["counter"])[0]
            body = bytes([Refusal.VERSION, 9]) + bytes(6)
            fake.sendto(packet(PacketType.REFUSED, body, version=9, counter=counter), worker)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        for line in outcomes("form", 2, f"127.0.0.1:{fake.getsockname()[1]}"):
            assert line["code"] == "refused"
            assert "wire version 9" in line["text"]
    finally:
        ended.set()
        thread.join()


def test_a_second_process_with_a_rank_is_refused_by_name() -> None:
    """T08."""
    server = SwitchServer(host="127.0.0.1")
    first = endpoint(server.port, 0)
    assert first.join(SECOND) == "waiting"
    twin = endpoint(server.port, 0)
    assert twin.join(5 * SECOND) == "refused"
    assert twin.refusal()[0] == Refusal.RANK_TAKEN  # type: ignore[index]
    for other, reason in (
        ({"key": bytes(16)}, Refusal.KEY_DIFFERS),
        ({"size": 3}, Refusal.SIZE_DIFFERS),
    ):
        stranger = endpoint(server.port, 1, **other)
        assert stranger.join(5 * SECOND) == "refused"
        assert stranger.refusal()[0] == reason  # type: ignore[index]
        stranger.close()
    twin.close()
    first.close()
    server.stop()


def test_a_switch_with_a_secret_takes_only_those_who_know_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("correct horse battery staple\n")
    with running_switch(tmp_path, "--secret-file", str(secret)) as switch:
        for line in outcomes("form", 2, switch.address):
            assert line["code"] == "refused"
            assert "NETFOLD_SECRET_FILE" in line["text"]
        knows = {"NETFOLD_SECRET_FILE": str(secret)}
        for line in outcomes("form", 2, switch.address, **knows):
            assert line["code"] == ""
    with running_switch(tmp_path) as switch:
        for line in outcomes("form", 2, switch.address, **knows):
            assert line["code"] == "refused"
            assert "--secret-file" in line["text"]


def test_a_taken_port_is_one_sentence(tmp_path: Path) -> None:
    """T06: said at the start; port 0 never meets it."""
    server = SwitchServer(host="127.0.0.1")
    with pytest.raises(OSError, match="in use"):
        SwitchServer(host="127.0.0.1", port=server.port)
    server.stop()


def test_a_closed_group_leaves_nothing_at_the_switch() -> None:
    server = SwitchServer(host="127.0.0.1")
    for round_number in range(5):
        pair = [endpoint(server.port, rank, incarnation=round_number) for rank in (0, 1)]
        while not all(member.join(SECOND // 20) == "settled" for member in pair):
            pass
        assert server.counters()["groups_open"] == 1
        for member in pair:
            member.close()
        while server.counters()["groups_open"] != 0:
            server.wait(SECOND // 20)
        assert server.counters()["memory_bytes"] == 0
    server.stop()
