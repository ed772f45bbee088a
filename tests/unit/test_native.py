"""Small native functions against plain Python."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from netfold import _native
from netfold._wire import HEADER_BYTES, VERSION, DType, Mode, Op, PacketType


def test_crc_of_the_standard_text_and_in_pieces() -> None:
    assert _native.crc32c(b"123456789") == 0xE3069283
    assert _native.crc32c(b"6789", _native.crc32c(b"12345")) == 0xE3069283


def test_siphash_reference_output() -> None:
    key = bytes(range(16))
    assert _native.siphash(key, b"") == 0x726FDB47DD0E0E31
    assert _native.siphash(key, bytes(range(15))) == 0xA129CA6149BE45E5


@pytest.mark.parametrize("kernel_set", _native.kernel_sets())
def test_every_kernel_set_adds_alike(kernel_set: str) -> None:
    first = struct.pack("<5f", 1.5, -0.0, float("inf"), 1e-40, 3e38)
    second = struct.pack("<5f", 2.5, -0.0, 1.0, 1e-40, 3e38)
    found = _native.fold(Op.SUM, DType.FLOAT32, first, second, kernel_set)
    assert found == _native.fold(Op.SUM, DType.FLOAT32, first, second, "portable")
    assert struct.unpack("<5f", found)[:3] == (4.0, -0.0, float("inf"))
    wrapped = _native.fold(
        Op.SUM, DType.INT32, struct.pack("<i", 2**31 - 1), struct.pack("<i", 1), kernel_set
    )
    assert struct.unpack("<i", wrapped) == (-(2**31),)


FIELDS = {"type": PacketType.DATA, "dtype": DType.FLOAT32, "elements": 2, "stream": 9, "chunk": 7}
KEY = bytes(range(16))


def test_a_sealed_packet_is_read_back_and_its_damage_is_named() -> None:
    payload = struct.pack("<2f", 1.0, 2.0)
    datagram = _native.seal_packet({**FIELDS, "version": VERSION}, payload, KEY)
    assert len(datagram) == HEADER_BYTES + len(payload)
    verdict, fields = _native.decode_packet(datagram, KEY)
    assert verdict == "ok"
    assert {name: fields[name] for name in FIELDS} == FIELDS
    assert _native.decode_packet(datagram, bytes(16))[0] == "tag"
    assert _native.decode_packet(datagram[:-1] + b"\x01", KEY)[0] == "crc"
    more = _native.seal_packet({**FIELDS, "version": VERSION, "elements": 3}, payload, KEY)
    assert _native.decode_packet(more, KEY)[0] == "malformed"
    assert _native.decode_packet(b"\x00" + datagram[1:], KEY)[0] == "foreign"
    other = _native.seal_packet({**FIELDS, "version": VERSION + 1}, payload, KEY)
    assert _native.decode_packet(other, KEY)[0] == "version"


def test_packets_that_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        _native.seal_packet(FIELDS, b"", b"short")
    with pytest.raises(KeyError):
        _native.seal_packet({"colour": 1}, b"", None)
    with pytest.raises(ValueError, match="elements"):
        _native.seal_packet({"elements": 1 << 16}, b"", None)


def test_a_slot_takes_each_member_once_and_serves_when_complete() -> None:
    heads: list[dict[str, int]] = [{}, {}]
    said = []
    for member in (0, 0, 1, 0):
        verdict, heads = _native.slot_add(heads, 9, 0, member, 0b11, 4)
        said.append(verdict)
    assert said == ["first", "duplicate", "add", "serve"]
    assert heads[0]["added"] == 0b11
    assert heads[0]["last"] == 1
    assert _native.slot_probe(heads, 9, 0, 0, 4) == "serve"
    with pytest.raises(ValueError, match="two heads"):
        _native.slot_add([{}], 9, 0, 0, 0b11, 4)


def test_folds_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="no kernel"):
        _native.fold(Op.AVG, DType.BOOL, b"\x00", b"\x00")
    with pytest.raises(ValueError, match="whole elements"):
        _native.fold(Op.SUM, DType.FLOAT32, bytes(4), bytes(8))
    with pytest.raises(ValueError, match="kernel set"):
        _native.fold(Op.SUM, DType.FLOAT32, bytes(4), bytes(4), "abacus")


def test_an_endpoint_refuses_what_the_engine_cannot_take() -> None:
    def endpoint(**changed: Any) -> _native.Endpoint:
        given: dict[str, Any] = {"host": "127.0.0.1", "port": 9, "job": "t", "incarnation": 1}
        given |= {"key": KEY, "group": 1, "rank": 0, "size": 2}
        return _native.Endpoint(**given | changed)

    for changed in ({"size": 1}, {"size": 65}, {"rank": 2}, {"window_max": 0}, {"job": "x" * 65}):
        with pytest.raises(ValueError, match=r"."):
            endpoint(**changed)
    open_one = endpoint()
    for elements, dtype, op, mode in (
        (0, DType.FLOAT32, Op.SUM, Mode.FLOAT32),
        (1, 99, Op.SUM, Mode.EXACT),
        (1, DType.BOOL, Op.AVG, Mode.EXACT),
        (1, DType.FLOAT64, Op.SUM, Mode.FIXED32),
        (1, DType.FLOAT32, Op.MAX, Mode.FIXED32),
    ):
        with pytest.raises(ValueError, match=r"."):
            open_one.submit(0, elements, dtype, op, mode, dtype, 0, True)
    open_one.close()
    with pytest.raises(RuntimeError, match="closed"):
        open_one.join(0)
    with pytest.raises(KeyError):
        open_one.test(1)
