"""Small native functions against plain Python."""

from __future__ import annotations

import struct

import pytest

from netfold import _native
from netfold._wire import DType, Op


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
