"""Written by wire/generate.py from wire/wire.toml: change that, then run `make wire`."""

from enum import IntEnum, IntFlag
from struct import Struct

MAGIC = 0x4E46
VERSION = 1
HEADER_BYTES = 64
PAYLOAD_BYTES_MAX = 8192
WINDOW_MAX = 128
CHILDREN_MAX = 64
UDP_IPV4_BYTES = 28
UDP_IPV6_BYTES = 48
CRC_COVERS_BYTES = 52
TAG_COVERS_BYTES = 56
HEARTBEAT_FINGERPRINTS = 16
FIXED_BLOCK_ELEMENTS = 256
FIXED_HEAD_BYTES = 2
FIXED_EXPONENT_BIAS = 126
FIXED_CLASS_BYTES = 64


class PacketType(IntEnum):
    """What a packet is."""

    DATA = 1
    RESULT = 2
    HAVE = 3
    PROBE = 4
    VOID = 5
    HELLO = 16
    COOKIE = 17
    JOIN = 18
    JOINED = 19
    REFUSED = 20
    HEARTBEAT = 21
    ACK = 22
    LEAVE = 23
    GONE = 24
    MISMATCH = 25
    ABORT = 26
    SET_H = 32
    RESET = 33
    RESYNC = 34
    WHO = 35


class Flag(IntFlag):
    """Bits of the header's flags byte."""

    RESEND = 1
    PARTIAL = 2
    COLLISION = 4
    OVERFLOW = 8
    ECN = 16
    FINAL = 32


class DType(IntEnum):
    """Element type of a payload."""

    UINT8 = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    FLOAT16 = 5
    BFLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BOOL = 9


class Op(IntEnum):
    """Reduction."""

    SUM = 0
    AVG = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4
    BAND = 5
    BOR = 6
    BXOR = 7


class Mode(IntEnum):
    """How numbers travel and are added."""

    EXACT = 0
    FLOAT32 = 1
    FIXED32 = 2
    BF16 = 3
    F16 = 4
    FIXED8 = 5


class Kind(IntEnum):
    """Collective."""

    ALL_REDUCE = 1
    DELEGATED_ALL_REDUCE = 2
    BROADCAST = 3
    REDUCE = 4
    ALL_GATHER = 5
    GATHER = 6
    SCATTER = 7
    REDUCE_SCATTER = 8
    ALL_TO_ALL = 9
    BARRIER = 10


class Cause(IntEnum):
    """Why a group is broken."""

    GONE = 1
    MISMATCH = 2
    TIMEOUT = 3
    ABORT = 4
    DRAIN = 5
    AGGREGATOR_LOST = 6


class Refusal(IntEnum):
    """Why a Join is refused."""

    VERSION = 1
    SECRET = 2
    RANK_TAKEN = 3
    SIZE_DIFFERS = 4
    NO_SLOTS = 5
    FULL = 6
    DRAINING = 7
    KEY_DIFFERS = 8


DTYPE_BYTES = {
    DType.UINT8: 1,
    DType.INT8: 1,
    DType.INT16: 2,
    DType.INT32: 4,
    DType.INT64: 8,
    DType.FLOAT16: 2,
    DType.BFLOAT16: 2,
    DType.FLOAT32: 4,
    DType.FLOAT64: 8,
    DType.BOOL: 1,
}

# The header's fields in wire order.
FIELD_OFFSETS = {
    "magic": 0,
    "version": 2,
    "type": 3,
    "flags": 4,
    "op": 5,
    "dtype": 6,
    "exponent": 7,
    "stream": 8,
    "node": 12,
    "ranks": 14,
    "chunk": 16,
    "bitmap": 24,
    "elements": 32,
    "rank": 34,
    "counter": 36,
    "fingerprint": 40,
    "collective": 48,
    "crc": 52,
    "tag": 56,
}
FIELD_BYTES = {
    "magic": 2,
    "version": 1,
    "type": 1,
    "flags": 1,
    "op": 1,
    "dtype": 1,
    "exponent": 1,
    "stream": 4,
    "node": 2,
    "ranks": 2,
    "chunk": 8,
    "bitmap": 8,
    "elements": 2,
    "rank": 2,
    "counter": 4,
    "fingerprint": 8,
    "collective": 4,
    "crc": 4,
    "tag": 8,
}
HEADER_FORMAT = ">HBBBBBBIHHQQHHIQIIQ"
HEADER = Struct(HEADER_FORMAT)
