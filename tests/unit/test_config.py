"""Settings: a wrong value is one sentence that names it and what is expected."""

from __future__ import annotations

import pytest

from netfold import config
from netfold.config import Address, from_environment, parse_address, parse_bytes
from netfold.errors import LEAVES, ConfigError, NetfoldError, PeerLost, from_code


def test_nothing_set_is_every_default() -> None:
    found = from_environment({})
    assert found.switches == ()
    assert found.lease_s == 5
    assert found.offload


def test_what_is_set_is_read() -> None:
    found = from_environment(
        {"NETFOLD_SWITCH": "[::1]:5117, b:6", "NETFOLD_WINDOW": "64", "NETFOLD_TIMEOUT": "1.5"}
    )
    assert found.switches == (Address(host="::1", port=5117), Address(host="b", port=6))
    assert str(found.switches[0]) == "[::1]:5117"
    assert found.window_max == 64
    assert found.timeout_s == 1.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NETFOLD_SWITCH", "host"),
        ("NETFOLD_SWITCH", "host:0"),
        ("NETFOLD_SWITCH", "host:99999"),
        ("NETFOLD_SWITCH", "::1:5117"),
        ("NETFOLD_SWITCH", "a:1,"),
        ("NETFOLD_MODE", "float16"),
        ("NETFOLD_WINDOW", "many"),
        ("NETFOLD_WINDOW", "7"),
        ("NETFOLD_PAYLOAD_BYTES", "100"),
        ("NETFOLD_PAYLOAD_BYTES", "9000"),
        ("NETFOLD_LEASE", "-1"),
        ("NETFOLD_TIMEOUT", "soon"),
        ("NETFOLD_OFFLOAD", "yes"),
        ("NETFOLD_JOB", "j" * 65),
        ("NETFOLD_IFNAME", "nonexistent0"),
        ("NETFOLD_SECRET_FILE", "no/such/file"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_environment({name: value})
    assert name in caught.value.message
    assert value in caught.value.message
    assert "expected" in caught.value.message


def test_a_misspelt_variable_is_not_ignored() -> None:
    with pytest.raises(ConfigError, match="NETFOLD_SWITCH"):
        from_environment({"NETFOLD_SWICH": "host:5117"})


def test_every_variable_has_its_line() -> None:
    assert all(name.startswith("NETFOLD_") and takes for name, takes in config.VARIABLES.items())


@pytest.mark.parametrize(("text", "size"), [("4096", 4096), ("64MiB", 64 << 20), ("1GiB", 1 << 30)])
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes("--size", text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5MiB", "ten", "4QiB"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="--size"):
        parse_bytes("--size", text)


def test_port_zero_is_for_switches_only() -> None:
    assert parse_address("--listen", "0.0.0.0:0", port_min=0).port == 0
    with pytest.raises(ConfigError):
        parse_address("NETFOLD_SWITCH", "host:0")


def test_a_link_local_address_keeps_its_scope() -> None:
    assert config.resolve(parse_address("NETFOLD_SWITCH", "[fe80::1%lo]:5117")) == "fe80::1%lo"


def test_errors_have_one_base_and_their_code_in_the_text() -> None:
    for code, leaf in LEAVES.items():
        error = leaf("what happened", ranks=[3])
        assert isinstance(error, NetfoldError)
        assert str(error) == f"[netfold:{code}] what happened"
        told = from_code(code, "what happened", [3])
        assert type(told) is leaf
        assert told.ranks == (3,)
    assert issubclass(PeerLost, RuntimeError)
