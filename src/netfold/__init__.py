"""netfold: PyTorch's all-reduce computed inside the network.

Training scripts need no import: torch finds the backend by itself, and
`torch.distributed.init_process_group("netfold")` uses it. With torch's autoload switched off
(TORCH_DEVICE_BACKEND_AUTOLOAD=0), `import netfold.torch` registers it.

Importing this package alone is cheap: neither torch nor the native module is loaded.
"""

from __future__ import annotations

import sys
from typing import Any

from netfold.errors import (
    Aborted,
    AggregatorLost,
    ConfigError,
    Mismatch,
    NetfoldError,
    PeerLost,
    Refused,
    Timeout,
    Unreachable,
    Unsupported,
)

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "AggregatorLost",
    "ConfigError",
    "Mismatch",
    "NetfoldError",
    "PeerLost",
    "Refused",
    "Timeout",
    "Unreachable",
    "Unsupported",
    "__version__",
    "report",
]


def report() -> dict[str, Any]:
    """Which path this process's collectives took, so far: counts, bytes and shares.

    {"paths": {path: {"collectives": int, "bytes": int, "share": float}}, "reasons": {why: int},
    "groups": [per group the same, and "expected_over_ring": speed over a ring's with a port for
    each worker], "text": str}. Paths are "switch", "shards", "gloo" and "local"; a share is of all
    bytes; "reasons" says why collectives were not accelerated.
    """
    # A process that never made a group has not loaded the counters, nor torch.
    path = sys.modules.get("netfold.torch.path")
    if path is None:
        return {"paths": {}, "reasons": {}, "groups": [], "text": "no netfold group was made"}
    result: dict[str, Any] = path.report()
    return result
