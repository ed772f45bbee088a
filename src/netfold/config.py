"""Settings from the environment. A wrong value is one ConfigError that says what is expected."""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from netfold import defaults
from netfold._wire import PAYLOAD_BYTES_MAX, Mode
from netfold.errors import ConfigError

SECRET_CHARACTERS_MIN: Final = 16
SIZE_BYTES_MAX: Final = 1 << 50
SECONDS_MIN, SECONDS_MAX = 0.1, 1e6
SIOCGIFADDR: Final = 0x8915

# Every variable that is read, and what it takes. The error texts and the documentation use it.
VARIABLES: Final = {
    "NETFOLD_SWITCH": "host:port of the switch, an IPv6 address as [address]:port; several with "
    "commas between them",
    "NETFOLD_JOB": f"a job name of 1 to {defaults.JOB_NAME_BYTES_MAX} bytes",
    "NETFOLD_SECRET_FILE": "a file with the switch's secret, at least "
    f"{SECRET_CHARACTERS_MIN} characters",
    "NETFOLD_IFNAME": "the name of the network interface that leads to the switch, or to the other "
    "workers",
    "NETFOLD_MODE": "how float32 sums are computed: float32 (in rank order) or fixed32 (fixed "
    "point, independent of the order)",
    "NETFOLD_TIMEOUT": "seconds a collective may take when the script sets no timeout",
    "NETFOLD_JOIN_TIMEOUT": "seconds forming a group may take",
    "NETFOLD_LEASE": "seconds without a sign of life before the switch counts as dead",
    "NETFOLD_WINDOW": "chunks in flight, 8 to 4096",
    "NETFOLD_PAYLOAD_BYTES": f"bytes of a chunk, 64 to {PAYLOAD_BYTES_MAX}, a multiple of 8",
    "NETFOLD_OFFLOAD": "1 to use GSO and GRO where the kernel has them, 0 not to",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Where a switch is."""

    host: str  # as it was written: a name or a numeric address
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """What the environment of a worker says; times in seconds."""

    switches: tuple[Address, ...] = ()  # none: a shard on every worker
    job: str = defaults.JOB
    secret: bytes | None = None  # 16 bytes
    interface: str = ""
    mode: Mode = Mode.FLOAT32
    timeout_s: float | None = None
    join_timeout_s: float = defaults.JOIN_TIMEOUT_S
    lease_s: float = defaults.LEASE_S
    window_max: int = defaults.WINDOW_MAX
    payload_bytes_max: int = defaults.PAYLOAD_BYTES_MAX
    offload: bool = True


def from_environment(environment: Mapping[str, str] | None = None) -> Config:
    """Reads NETFOLD_*. Raises ConfigError."""
    env = os.environ if environment is None else environment
    _refuse_misspelt(env)
    switch = env.get("NETFOLD_SWITCH", "")
    return Config(
        switches=parse_addresses("NETFOLD_SWITCH", switch) if switch else (),
        job=_job(env),
        secret=_secret(env),
        interface=_interface(env),
        mode=_mode(env),
        timeout_s=_seconds(env, "NETFOLD_TIMEOUT", None),
        join_timeout_s=_seconds(env, "NETFOLD_JOIN_TIMEOUT", None) or defaults.JOIN_TIMEOUT_S,
        lease_s=_seconds(env, "NETFOLD_LEASE", None) or defaults.LEASE_S,
        window_max=_integer(env, "NETFOLD_WINDOW", defaults.WINDOW_MAX, 8, 4096),
        payload_bytes_max=_payload_bytes(env),
        offload=_integer(env, "NETFOLD_OFFLOAD", 1, 0, 1) == 1,
    )


def parse_addresses(source: str, text: str) -> tuple[Address, ...]:
    """Addresses with commas between them; see parse_address()."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 1 and not all(parts):
        raise _wrong(source, text, "addresses with a comma between each two")
    return tuple(parse_address(source, part) for part in parts)


def parse_address(source: str, text: str, *, port_min: int = 1) -> Address:
    """ "host:port" or "[IPv6]:port"; `source` names the variable or option in the error."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon or not host or bracketed != (":" in host):
        raise _wrong(source, text, "host:port, an IPv6 address as [address]:port")
    if not port.isascii() or not port.isdigit() or not port_min <= int(port) <= 65535:
        raise _wrong(source, text, f"a port from {port_min} to 65535 after the last colon")
    return Address(host=host, port=int(port))


def resolve(address: Address, source: str = "NETFOLD_SWITCH") -> str:
    """The numeric address, as this machine resolves it. Raises ConfigError, which names where the
    address came from."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(
            f"the host name {address.host!r} cannot be resolved here ({error}): check {source}, or "
            "name a numeric address"
        ) from None
    return numeric_host(found[0][4])


def numeric_host(address: tuple[Any, ...]) -> str:
    """Of a socket's address, with the scope of a link-local one: "fe80::1%eth0"."""
    return socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]


def address_of_interface(name: str) -> str:
    """The IPv4 address of an interface of this machine. Raises ConfigError where it has none."""
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe, SIOCGIFADDR, request)
        except OSError as error:
            raise _wrong(
                "NETFOLD_IFNAME", name, f"one with an address ({error.strerror})"
            ) from None
    return socket.inet_ntoa(reply[20:24])


def read_secret(source: str, file: str) -> bytes:
    """The 16 bytes both sides make of a secret file; white space around it does not count."""
    try:
        secret = Path(file).read_bytes().strip()
    except OSError as error:
        raise _wrong(source, file, f"a readable file ({error.strerror})") from None
    if len(secret) < SECRET_CHARACTERS_MIN:
        raise _wrong(source, file, f"a file of at least {SECRET_CHARACTERS_MIN} characters")
    return hashlib.sha256(b"netfold secret\0" + secret).digest()[:16]


def parse_bytes(source: str, text: str) -> int:
    """A size such as 4096, 64MiB or 1GiB, in bytes. Raises ConfigError."""
    units = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = units.get(text[len(digits) :].strip().lower())
    if unit is None or not digits.isascii() or not digits.isdigit() or int(digits) == 0:
        raise _wrong(source, text, "a size such as 65536, 64MiB or 1GiB")
    size = int(digits) * unit
    if size > SIZE_BYTES_MAX:
        raise _wrong(source, text, "less: no machine has that much")
    return size


def _wrong(source: str, value: str, expected: str) -> ConfigError:
    return ConfigError(f"{source}={value!r} is wrong: expected {expected}")


def _refuse_misspelt(env: Mapping[str, str]) -> None:
    for name in sorted(env):
        if name.startswith("NETFOLD_") and name not in VARIABLES:
            near = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.9)
            if near:
                raise ConfigError(f"{name} is not a setting of netfold: did you mean {near[0]}?")


def _seconds(env: Mapping[str, str], name: str, default: float | None) -> float | None:
    text = env.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not SECONDS_MIN <= value <= SECONDS_MAX:
        limits = f"{SECONDS_MIN:g} to {SECONDS_MAX:,.0f}"
        raise _wrong(name, text, f"{VARIABLES[name]}, from {limits}")
    return value


def _integer(env: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = env.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise _wrong(name, text, VARIABLES[name])
    return int(text)


def _payload_bytes(env: Mapping[str, str]) -> int:
    name = "NETFOLD_PAYLOAD_BYTES"
    value = _integer(env, name, defaults.PAYLOAD_BYTES_MAX, 64, PAYLOAD_BYTES_MAX)
    if value % 8:
        raise _wrong(name, env[name], VARIABLES[name])
    return value


def _job(env: Mapping[str, str]) -> str:
    job = env.get("NETFOLD_JOB", "") or defaults.JOB
    if len(job.encode()) > defaults.JOB_NAME_BYTES_MAX:
        raise _wrong("NETFOLD_JOB", job, VARIABLES["NETFOLD_JOB"])
    return job


def _secret(env: Mapping[str, str]) -> bytes | None:
    file = env.get("NETFOLD_SECRET_FILE", "")
    return read_secret("NETFOLD_SECRET_FILE", file) if file else None


def _mode(env: Mapping[str, str]) -> Mode:
    text = env.get("NETFOLD_MODE", "") or defaults.MODE
    modes = {mode.name.lower(): mode for mode in (Mode.FLOAT32, Mode.FIXED32)}
    if text not in modes:
        raise _wrong("NETFOLD_MODE", text, VARIABLES["NETFOLD_MODE"])
    return modes[text]


def _interface(env: Mapping[str, str]) -> str:
    name = env.get("NETFOLD_IFNAME", "")
    names = [known for _, known in socket.if_nameindex()]
    if name and name not in names:
        raise _wrong("NETFOLD_IFNAME", name, f"one interface of this machine: {', '.join(names)}")
    return name
