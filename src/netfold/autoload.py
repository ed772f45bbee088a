"""How torch finds netfold: the entry points of pyproject.toml name `register`.

Torch calls it at the end of `import torch`, in every Python of the environment, so it must be
cheap and must never raise: an exception here would make `import torch` fail for everybody.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

NAME = "netfold"


def register() -> None:
    """Makes "netfold" a backend of torch.distributed. Idempotent; what fails is said on stderr."""
    try:
        _register()
    except Exception as error:  # whatever it is: `import torch` goes on without netfold
        print(f"netfold: not registered as a torch backend: {error}", file=sys.stderr)


def create(options: Any, pg_options: Any = None) -> ProcessGroup:
    """What torch calls for each group; the heavy imports happen here."""
    from netfold.torch.process_group import create_group

    return create_group(options, pg_options)


def _register() -> None:
    import torch.distributed as dist

    if not dist.is_available():
        return
    taken = dist.Backend._plugins.get(NAME.upper())
    if taken is not None:
        if taken.creator_fn is not create:
            raise RuntimeError(
                f"the backend name {NAME!r} is taken by {taken.creator_fn.__module__}"
            )
        return
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
