"""torchrun as `netfold run` starts it: a signal ends it without a traceback of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path


def launch() -> None:
    """As torchrun with the same arguments; exits with 128 + the signal that ended it."""
    # Torchrun has handlers as soon as there are processes to end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda came, _: os._exit(128 + came))
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.run import main

    try:
        main(sys.argv[1:])
    except SignalException as end:
        _end_children()
        sys.exit(128 + end.sigval)


def _end_children() -> None:
    """Torchrun ends those it knows; one that it was just starting when the signal came is left."""
    for tasks in Path("/proc/self/task").glob("*/children"):
        for pid in map(int, tasks.read_text().split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    launch()
