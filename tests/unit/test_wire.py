"""wire.toml is the one truth of the packet: what is generated from it is up to date and adds up."""

from __future__ import annotations

from pathlib import Path

import pytest

from netfold import _wire
from wire import generate


def test_generated_files_are_what_the_generator_writes() -> None:
    stale = [str(path.relative_to(generate.ROOT)) for path in generate.differing()]
    assert not stale, f"run `make wire`: {stale}"


def test_generator_fills_an_empty_tree_and_then_finds_no_difference(tmp_path: Path) -> None:
    for path, text in generate.differing(tmp_path).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert not generate.differing(tmp_path)


def test_generator_keeps_the_prose_around_its_tables() -> None:
    wire = generate.load(generate.SPEC.read_text())
    page = "# Title\n\nbefore\n\n<!-- generated: header -->\nstale\n<!-- /generated -->\n\nafter\n"
    written = generate.docs_page(wire, page)
    assert written.startswith("# Title\n\nbefore\n\n<!-- generated: header -->\n| offset")
    assert "<!-- /generated -->\n\nafter\n" in written
    assert "stale" not in written


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("header_bytes = 64", "header_bytes = 60", "add up to 64 bytes"),
        ("probe = 4 ", "probe = 3 ", "one code twice"),
    ],
)
def test_generator_refuses_a_packet_that_does_not_add_up(
    old: str, new: str, complaint: str
) -> None:
    text = generate.SPEC.read_text()
    assert old in text
    with pytest.raises(ValueError, match=complaint):
        generate.load(text.replace(old, new))


def test_header_is_64_bytes_without_gaps() -> None:
    assert _wire.HEADER.size == _wire.HEADER_BYTES == 64
    end = 0
    for name, offset in _wire.FIELD_OFFSETS.items():
        assert offset == end, f"gap before {name}"
        assert offset % _wire.FIELD_BYTES[name] == 0, f"{name} is not aligned"
        end += _wire.FIELD_BYTES[name]
    assert end == _wire.HEADER_BYTES


def test_crc_covers_all_before_it_and_the_tag_covers_the_crc_too() -> None:
    assert _wire.FIELD_OFFSETS["crc"] == _wire.CRC_COVERS_BYTES
    assert _wire.FIELD_OFFSETS["tag"] == _wire.TAG_COVERS_BYTES


def test_no_element_straddles_two_chunks() -> None:
    for dtype, size in _wire.DTYPE_BYTES.items():
        assert _wire.PAYLOAD_BYTES_MAX % size == 0, dtype
    assert set(_wire.DTYPE_BYTES) == set(_wire.DType)


def test_every_code_fits_its_field() -> None:
    # In the header these are bytes; in the fingerprint kind, op, dtype and mode have 4 bits each.
    for enum, limit in (
        (_wire.PacketType, 256),
        (_wire.Kind, 16),
        (_wire.Op, 16),
        (_wire.DType, 16),
        (_wire.Mode, 16),
    ):
        assert all(0 <= member < limit for member in enum), enum
    assert sum(_wire.Flag) < 256
    assert 8 * _wire.FIELD_BYTES["bitmap"] == _wire.CHILDREN_MAX
