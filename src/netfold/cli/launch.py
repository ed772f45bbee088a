"""torchrun as `netfold run` starts it: a signal ends it without a traceback of its own."""

from __future__ import annotations

import os
import signal
import sys


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
        sys.exit(128 + end.sigval)


if __name__ == "__main__":
    launch()
