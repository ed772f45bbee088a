"""One line to whoever runs the job."""

from __future__ import annotations

import logging
import sys

_log = logging.getLogger("netfold")


def say(line: str, *, level: int = logging.INFO) -> None:
    """Logs under "netfold", or writes to stderr where a script has set up no logging.

    Without handlers Python drops what is below a warning, and these lines are what tells a user
    which path is in use.
    """
    if _log.hasHandlers():
        _log.log(level, "%s", line)
    else:
        print(f"netfold: {line}", file=sys.stderr, flush=True)
