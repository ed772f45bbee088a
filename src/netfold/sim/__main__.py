"""`python -m netfold.sim --seeds 0:10000`."""

import sys

from netfold.errors import ConfigError
from netfold.sim.seeds import app

if __name__ == "__main__":
    try:
        app()
    except ConfigError as error:
        print(f"netfold.sim: {error.message}", file=sys.stderr)
        sys.exit(2)
