"""A switch as a member of a team: it tells its port and, when asked, what it counted."""

from __future__ import annotations

from netfold.lab.team import Owner


def main() -> None:
    owner = Owner()
    instructions = owner.receive()
    from netfold._native import SwitchServer

    server = SwitchServer(host=instructions["host"])
    owner.send(port=server.port)
    try:
        while owner.receive() is not None:  # each line asks
            owner.send(counters=server.counters())
    finally:
        server.stop()


if __name__ == "__main__":
    main()
