"""The accept rule: what the aggregator reduces, and as which numbers.

It looks at op and dtype alone, and at the mode all ranks of a group share, so that all ranks come
to the same answer. What it does not accept (and what is not dense) goes to the inner backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from netfold._wire import DType, Mode, Op
from netfold._wire import Kind as CollectiveKind

Kind: Any = dist.ReduceOp.RedOpType  # the stubs lack its members


@dataclass(frozen=True, slots=True)
class Numbers:
    """How the engine takes a collective. `wire` is the dtype of the buffer it reduces."""

    wire: torch.dtype
    dtype: DType
    op: Op
    mode: Mode
    tensor_dtype: DType


_INTEGER_OPS: Final = {
    Kind.SUM: Op.SUM,
    Kind.MIN: Op.MIN,
    Kind.MAX: Op.MAX,
    Kind.PRODUCT: Op.PRODUCT,
    Kind.BAND: Op.BAND,
    Kind.BOR: Op.BOR,
    Kind.BXOR: Op.BXOR,
}
_FLOAT_OPS: Final = {
    Kind.SUM: Op.SUM,
    Kind.AVG: Op.AVG,
    Kind.MIN: Op.MIN,
    Kind.MAX: Op.MAX,
    Kind.PRODUCT: Op.PRODUCT,
}
_INTEGERS: Final = {
    torch.uint8: DType.UINT8,
    torch.int8: DType.INT8,
    torch.int16: DType.INT16,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.bool: DType.BOOL,
}
# Of 16 bits are widened for the sum and rounded once.
_FLOATS: Final = {
    torch.float16: (DType.FLOAT16, torch.float32),
    torch.bfloat16: (DType.BFLOAT16, torch.float32),
    torch.float32: (DType.FLOAT32, torch.float32),
    torch.float64: (DType.FLOAT64, torch.float64),
}


def accepted(mode: Mode) -> dict[tuple[torch.dtype, Any], Numbers]:
    """What a group in this mode reduces, by (dtype, op of torch)."""
    table = {
        (dtype, kind): Numbers(dtype, code, op, Mode.EXACT, code)
        for dtype, code in _INTEGERS.items()
        for kind, op in _INTEGER_OPS.items()
    }
    for dtype, (code, wire) in _FLOATS.items():
        for kind, op in _FLOAT_OPS.items():
            sums_float32 = wire == torch.float32 and op in (Op.SUM, Op.AVG)
            table[dtype, kind] = Numbers(
                wire,
                _FLOATS[wire][0],
                op,
                mode if sums_float32 else Mode.FLOAT32,  # MIN, MAX need no other; see numbers.md
                code,
            )
    return table


_DELEGATED: Final = {
    "allreduce": CollectiveKind.DELEGATED_ALL_REDUCE,
    "allreduce_coalesced": CollectiveKind.DELEGATED_ALL_REDUCE,
    "broadcast": CollectiveKind.BROADCAST,
    "reduce": CollectiveKind.REDUCE,
    "allgather": CollectiveKind.ALL_GATHER,
    "allgather_coalesced": CollectiveKind.ALL_GATHER,
    "all_gather_single": CollectiveKind.ALL_GATHER,
    "_allgather_base": CollectiveKind.ALL_GATHER,
    "gather": CollectiveKind.GATHER,
    "scatter": CollectiveKind.SCATTER,
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER,
    "reduce_scatter_single": CollectiveKind.REDUCE_SCATTER,
    "_reduce_scatter_base": CollectiveKind.REDUCE_SCATTER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
    "alltoall_base": CollectiveKind.ALL_TO_ALL,
    "all_to_all_single": CollectiveKind.ALL_TO_ALL,
    "barrier": CollectiveKind.BARRIER,
}


def delegated_fingerprint(name: str) -> int:
    """What ranks must agree on of a collective that the inner backend carries: which it is. Its
    tensors may differ (a gather's root has more of them)."""
    return _DELEGATED[name] << 60


EMPTY_FINGERPRINT: Final = CollectiveKind.ALL_REDUCE << 60
"""Of an all-reduce of no elements."""
