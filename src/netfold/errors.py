"""Every error netfold raises: one base class and few leaves.

Torch's DDP turns what a backend raises into a plain RuntimeError that holds its text, so the text
of each error begins with its code, as in "[netfold:peer_lost] …".
"""

from __future__ import annotations

from collections.abc import Iterable


class NetfoldError(RuntimeError):
    """What all errors of netfold are."""

    code = "error"  # the same in every release; also in the text

    def __init__(self, message: str, *, sequence: int = 0, ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.sequence = sequence  # of the collective in its group; 0: none
        self.ranks = tuple(ranks)  # global ranks to blame: gone, missing, or disagreeing

    @property
    def message(self) -> str:
        """The text without the code."""
        return str(self.args[0])

    def __str__(self) -> str:
        return f"[netfold:{self.code}] {self.message}"


class ConfigError(NetfoldError):
    """A setting is missing or wrong; the text names it, its value and what is expected."""

    code = "config"


class Unsupported(NetfoldError):
    """netfold cannot do this exactly, so it refuses before anything is sent."""

    code = "unsupported"


class Unreachable(NetfoldError):
    """No switch answers at the address that was named."""

    code = "unreachable"


class Refused(NetfoldError):
    """The switch answered and said no; the text says why."""

    code = "refused"


class PeerLost(NetfoldError):
    """A member of the group is dead; `ranks` are the dead ones."""

    code = "peer_lost"


class AggregatorLost(NetfoldError):
    """The switch is dead, or was told to stop."""

    code = "aggregator_lost"


class Timeout(NetfoldError):
    """A collective, or forming a group, took longer than it may; `ranks` are those missing."""

    code = "timeout"


class Aborted(NetfoldError):
    """A member broke the group on purpose: abort(), Ctrl-C, or its group was closed."""

    code = "aborted"


class Mismatch(NetfoldError):
    """Two members called different collectives; `ranks` are these two."""

    code = "mismatch"


LEAVES: dict[str, type[NetfoldError]] = {
    leaf.code: leaf
    for leaf in (
        ConfigError,
        Unsupported,
        Unreachable,
        Refused,
        PeerLost,
        AggregatorLost,
        Timeout,
        Aborted,
        Mismatch,
    )
}


def from_code(code: str, message: str, ranks: Iterable[int]) -> NetfoldError:
    """The error another process told us of, in the type it has there."""
    return LEAVES.get(code, NetfoldError)(message, ranks=ranks)
