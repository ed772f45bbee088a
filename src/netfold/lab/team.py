"""Processes that answer to one owner: it sends each a line of JSON, they send lines back.

Used by the benchmark and the demo, with or without a lab. A member that ends early takes the whole
team with it, in the owner as a TeamError; none outlives the owner.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import IO, Any, NamedTuple

from netfold.lab.network import Lab, inside

END_SECONDS_MAX = 5.0
"""How long a member may take to end by itself once its input is closed."""
ERROR_LINES_MAX = 12

Message = dict[str, Any]


class TeamError(RuntimeError):
    """A member failed; the text names it and ends with what it said last."""


class Event(NamedTuple):
    member: str
    message: Message


class _Member:
    def __init__(self, name: str, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.name = name
        self.process = process
        self.errors = errors
        self.input = process.stdin
        self.output = process.stdout
        self.pending = b""
        self.released = False  # it may end when it likes

    def read(self) -> list[Message]:
        """What can be read without waiting; EOFError once there will be no more."""
        data = os.read(self.output.fileno(), 1 << 20)
        if not data:
            raise EOFError
        *lines, self.pending = (self.pending + data).split(b"\n")
        return [json.loads(line) for line in lines if line]

    def end(self, patience_s: float) -> None:
        """Waits for it to end, kills it after `patience_s`, and closes its pipes."""
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.output.close()
        self.errors.close()

    def last_words(self) -> str:
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return "\n".join(lines[-ERROR_LINES_MAX:])


class Team:
    """Members by name, from `with` to its end. Not thread-safe."""

    def __init__(self, lab: Lab | None = None) -> None:
        self.lab = lab
        self._members: dict[str, _Member] = {}
        self._events: collections.deque[Event] = collections.deque()
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(at_once=error is not None)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def start(
        self, name: str, module: str, *, node: int, environment: Mapping[str, str] | None = None
    ) -> int:
        """Runs `python -m module` at a node of the lab (without one: right here); returns its
        process id."""
        command = [sys.executable, "-m", module]
        options: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": tempfile.TemporaryFile(),  # noqa: SIM115  closed with the member
            "env": {**os.environ, **(environment or {})},
            "start_new_session": True,  # Ctrl-C is for the owner, who ends the members
        }
        if self.lab is None:
            process = subprocess.Popen(inside(command), **options)
        else:
            process = self.lab.popen(node, command, **options)
        member = _Member(name, process, options["stderr"])
        self._members[name] = member
        self._selector.register(member.output, selectors.EVENT_READ, member)
        return process.pid

    def send(self, name: str, message: Message) -> None:
        member = self._members[name]
        try:
            member.input.write(json.dumps(message).encode() + b"\n")
            member.input.flush()
        except BrokenPipeError:
            self._fail(member)

    def release(self, name: str) -> None:
        """Closes a member's input: it is expected to end."""
        member = self._members[name]
        member.released = True
        with contextlib.suppress(BrokenPipeError):
            member.input.close()

    def events(self, silence_s_max: float) -> Iterator[Event]:
        """Messages as they come, until all members ended. TeamError after `silence_s_max`
        without any."""
        while self._events or self._selector.get_map():
            yield self.next_event(silence_s_max)

    def next_event(self, silence_s_max: float) -> Event:
        deadline = time.monotonic() + silence_s_max
        while not self._events:
            left = deadline - time.monotonic()
            if left <= 0 or not self._selector.get_map():
                names = ", ".join(sorted(key.data.name for key in self._keys())) or "all"
                raise TeamError(f"no word for {silence_s_max:.0f} s from {names}")
            for key, _ in self._selector.select(left):
                self._receive(key.data)
        return self._events.popleft()

    def expect(self, name: str, key: str, silence_s_max: float) -> Any:
        """The value under `key` of the next message of member `name` that has it; what others
        say meanwhile is kept."""
        kept: list[Event] = []
        try:
            while True:
                event = self.next_event(silence_s_max)
                if event.member == name and key in event.message:
                    return event.message[key]
                kept.append(event)
        finally:
            self._events.extendleft(reversed(kept))

    def close(self, *, at_once: bool = False) -> None:
        """Ends every member: those that do not go within END_SECONDS_MAX are killed."""
        deadline = time.monotonic() + (0.0 if at_once else END_SECONDS_MAX)
        for name in self._members:
            self.release(name)
        for member in self._members.values():
            member.end(max(0.0, deadline - time.monotonic()))
        self._members.clear()
        self._selector.close()
        self._selector = selectors.DefaultSelector()

    def _keys(self) -> list[selectors.SelectorKey]:
        return list(self._selector.get_map().values())

    def _receive(self, member: _Member) -> None:
        try:
            messages = member.read()
        except EOFError:
            self._selector.unregister(member.output)
            status = member.process.wait(END_SECONDS_MAX)
            if status or not member.released:
                self._fail(member)
            return
        self._events.extend(Event(member.name, message) for message in messages)

    def _fail(self, member: _Member) -> None:
        try:
            status = member.process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            status = 0
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        raise TeamError(f"{member.name} ended early ({how})\n{member.last_words()}".rstrip())


class Owner:
    """The member's side: lines from the owner in, lines to it out.

    What libraries print goes to standard error, which the owner shows if the member fails.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._output = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def receive(self) -> Message:
        """Blocks; SystemExit when the owner wants no more."""
        line = sys.stdin.readline()
        if not line:
            raise SystemExit(0)
        message: Message = json.loads(line)
        return message

    def send(self, **message: Any) -> None:
        self._output.write(json.dumps(message) + "\n")
