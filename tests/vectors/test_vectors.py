"""The engine passes wire/vectors: packet in, verdict and packet out, byte for byte.

The CRC and the tag in the vectors are checked by plain implementations in this file, so that a bug
in the native ones cannot have written them.
"""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from netfold import _native, _wire

FOLDER = Path(__file__).parents[2] / "wire" / "vectors"
MASK = (1 << 64) - 1


def load(name: str) -> list[dict[str, Any]]:
    vectors: list[dict[str, Any]] = json.loads((FOLDER / name).read_text())["vectors"]
    return vectors


def named(vectors: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("vector", vectors, ids=lambda vector: vector["name"])


@named(load("slot.json"))
def test_slot(vector: dict[str, Any]) -> None:
    packet, heads = vector["packet"], vector["heads"]
    where = (packet["stream"], packet["chunk"], packet["member"])
    if packet["type"] == "probe":
        assert _native.slot_probe(heads, *where, vector["slots"]) == vector["verdict"]
        assert vector["heads_after"] == heads
        return
    verdict, after = _native.slot_add(heads, *where, vector["target"], vector["slots"])
    assert verdict == vector["verdict"]
    assert after == vector["heads_after"]


@named(load("packet.json"))
def test_packet(vector: dict[str, Any]) -> None:
    key = bytes.fromhex(vector["key"]) if vector["key"] else None
    datagram, payload = bytes.fromhex(vector["datagram"]), bytes.fromhex(vector["payload"])
    if vector["verdict"] == "ok":
        assert _native.seal_packet(vector["fields"], payload, key) == datagram
    verdict, fields = _native.decode_packet(datagram, key)
    assert verdict == vector["verdict"]
    for name, value in vector["fields"].items():
        assert fields[name] == value


@named([vector for vector in load("packet.json") if vector["verdict"] == "ok"])
def test_packet_vectors_hold_outside_the_engine(vector: dict[str, Any]) -> None:
    datagram = bytes.fromhex(vector["datagram"])
    covered = datagram[: _wire.CRC_COVERS_BYTES] + datagram[_wire.HEADER_BYTES :]
    assert struct.unpack(">I", datagram[52:56])[0] == crc32c(covered)
    key = bytes.fromhex(vector["key"])
    tag = siphash(key, datagram[: _wire.TAG_COVERS_BYTES]) if key else 0
    assert struct.unpack(">Q", datagram[56:64])[0] == tag


def test_any_flipped_bit_of_a_packet_is_noticed() -> None:
    """T59: corruption is dropped by the CRC, whichever bit it hits."""
    vector = next(v for v in load("packet.json") if v["verdict"] == "ok" and v["payload"])
    key, datagram = bytes.fromhex(vector["key"]), bytes.fromhex(vector["datagram"])
    for bit in range(8 * len(datagram)):
        flipped = bytearray(datagram)
        flipped[bit // 8] ^= 1 << bit % 8
        assert _native.decode_packet(bytes(flipped), key)[0] != "ok", f"bit {bit}"


def test_random_bytes_are_never_a_packet() -> None:
    """T65: whatever comes is sorted into a counter."""
    chance = random.Random(1)
    for _ in range(2000):
        datagram = chance.randbytes(chance.randrange(64, 200))
        assert _native.decode_packet(datagram, bytes(16))[0] == "foreign"
        headed = struct.pack(">HB", _wire.MAGIC, _wire.VERSION) + datagram[3:]
        assert _native.decode_packet(headed, bytes(16))[0] in ("crc", "malformed")


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def siphash(key: bytes, data: bytes) -> int:
    k0, k1 = struct.unpack("<QQ", key)
    v: list[int] = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D]
    v += [k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & MASK

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & MASK
            v[2] = (v[2] + v[3]) & MASK
            v[1] = rotated(v[1], 13) ^ v[0]
            v[3] = rotated(v[3], 16) ^ v[2]
            v[0] = rotated(v[0], 32)
            v[2] = (v[2] + v[1]) & MASK
            v[0] = (v[0] + v[3]) & MASK
            v[1] = rotated(v[1], 17) ^ v[2]
            v[3] = rotated(v[3], 21) ^ v[0]
            v[2] = rotated(v[2], 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 255])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]
