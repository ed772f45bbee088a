"""Writes everything that is derived from wire.toml; with --check only says what differs.

The files: constants for C, C++ and BPF, constants for Python, and the tables of docs/protocol.md.
In wire.toml the comment behind a packet type, cause or refusal is its line in the docs.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SPEC = ROOT / "wire" / "wire.toml"
NOTICE = "Written by wire/generate.py from wire/wire.toml: change that, then run `make wire`."
STRUCT_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}

# Table of wire.toml → (prefix in C, enum in Python, what it enumerates).
ENUMS = {
    "types": ("TYPE", "PacketType", "What a packet is."),
    "flags": ("FLAG", "Flag", "Bits of the header's flags byte."),
    "dtypes": ("DTYPE", "DType", "Element type of a payload."),
    "ops": ("OP", "Op", "Reduction."),
    "modes": ("MODE", "Mode", "How numbers travel and are added."),
    "kinds": ("KIND", "Kind", "Collective."),
    "causes": ("CAUSE", "Cause", "Why a group is broken."),
    "refusals": ("REFUSAL", "Refusal", "Why a Join is refused."),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    name: str
    offset: int
    bytes: int
    doc: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Wire:
    """wire.toml, checked: what every output is written from."""

    constants: dict[str, int]
    fields: tuple[Field, ...]
    enums: dict[str, dict[str, int]]
    dtype_bytes: dict[str, int]
    comments: dict[tuple[str, str], str]


def load(text: str) -> Wire:
    raw: dict[str, Any] = tomllib.loads(text)
    fields: list[Field] = []
    offset = 0
    for entry in raw["field"]:
        fields.append(Field(offset=offset, **entry))
        offset += entry["bytes"]
    if offset != raw["wire"]["header_bytes"]:
        raise ValueError(f"the fields add up to {offset} bytes, not to header_bytes")
    dtypes: dict[str, list[int]] = raw["dtypes"]
    enums = {name: dict(raw[name]) for name in ENUMS if name != "dtypes"}
    enums["dtypes"] = {name: code for name, (code, _) in dtypes.items()}
    for name, members in enums.items():
        if len(set(members.values())) != len(members):
            raise ValueError(f"[{name}] gives one code twice")
    return Wire(
        constants=raw["wire"],
        fields=tuple(fields),
        enums=enums,
        dtype_bytes={name: size for name, (_, size) in dtypes.items()},
        comments=dict(_comments(text)),
    )


def _comments(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    """The comments behind values, by (table, key): tomllib drops them."""
    table = ""
    for line in text.splitlines():
        if header := re.fullmatch(r"\[(\w+)\]", line.strip()):
            table = header[1]
        elif value := re.fullmatch(r"(\w+) = [^#]*#\s*(.+)", line):
            yield (table, value[1]), value[2]


def c_header(wire: Wire) -> str:
    """Plain C without includes, so that slot.h and BPF programs can take it too."""
    lines = [
        f"// {NOTICE}",
        "#pragma once",
        "// clang-format off",
        "",
        *(f"#define NF_{name.upper()} {_number(name, n)}" for name, n in wire.constants.items()),
    ]
    lines += ["", "// Where each header field starts."]
    lines += [f"#define NF_OFFSET_{f.name.upper()} {f.offset}" for f in wire.fields]
    lines += ["", "// How many bytes it has."]
    lines += [f"#define NF_SIZE_{f.name.upper()} {f.bytes}" for f in wire.fields]
    for name, (prefix, _, doc) in ENUMS.items():
        lines += ["", f"// {doc}", f"enum nf_{prefix.lower()} {{"]
        lines += [f"  NF_{prefix}_{key.upper()} = {n}," for key, n in wire.enums[name].items()]
        lines += ["};"]
        if sorted(wire.enums[name].values()) == list(range(len(wire.enums[name]))):
            lines += [f"#define NF_{prefix}_COUNT {len(wire.enums[name])}  // codes are dense"]
    lines += [
        "",
        "// Bytes of one element; 0 for a code that is none.",
        "static inline unsigned nf_dtype_bytes(unsigned dtype) {",
        "  switch (dtype) {",
        *(f"    case NF_DTYPE_{k.upper()}: return {n};" for k, n in wire.dtype_bytes.items()),
        "    default: return 0;",
        "  }",
        "}",
        "",
        "#ifdef __cplusplus",
        "#define NF_STATIC_ASSERT static_assert",
        "#else",
        "#define NF_STATIC_ASSERT _Static_assert",
        "#endif",
        "",
    ]
    end = "0"
    for name in (f.name.upper() for f in wire.fields):
        lines += [f'NF_STATIC_ASSERT(NF_OFFSET_{name} == {end}, "gap");']
        end = f"NF_OFFSET_{name} + NF_SIZE_{name}"
    lines += [f'NF_STATIC_ASSERT(NF_HEADER_BYTES == {end}, "the fields fill the header");']
    lines += ['NF_STATIC_ASSERT(NF_CRC_COVERS_BYTES == NF_OFFSET_CRC, "all before the CRC");']
    lines += ['NF_STATIC_ASSERT(NF_TAG_COVERS_BYTES == NF_OFFSET_TAG, "all before the tag");']
    return "\n".join(lines) + "\n"


def _number(name: str, value: int) -> str:
    return f"0x{value:X}" if name == "magic" else str(value)


def python_module(wire: Wire) -> str:
    lines = [f'"""{NOTICE}"""', ""]
    lines += ["from enum import IntEnum, IntFlag", "from struct import Struct", ""]
    lines += [f"{name.upper()} = {_number(name, n)}" for name, n in wire.constants.items()]
    for name, (_, enum, doc) in ENUMS.items():
        base = "IntFlag" if name == "flags" else "IntEnum"
        lines += ["", "", f"class {enum}({base}):", f'    """{doc}"""', ""]
        lines += [f"    {key.upper()} = {n}" for key, n in wire.enums[name].items()]
    codes = "".join(STRUCT_CODES[f.bytes] for f in wire.fields)
    lines += ["", "", "DTYPE_BYTES = {"]
    lines += [f"    DType.{name.upper()}: {size}," for name, size in wire.dtype_bytes.items()]
    lines += ["}", "", "# The header's fields in wire order."]
    lines += ["FIELD_OFFSETS = {", *(f'    "{f.name}": {f.offset},' for f in wire.fields), "}"]
    lines += ["FIELD_BYTES = {", *(f'    "{f.name}": {f.bytes},' for f in wire.fields), "}"]
    lines += [f'HEADER_FORMAT = ">{codes}"', "HEADER = Struct(HEADER_FORMAT)"]
    return "\n".join(lines) + "\n"


def header_table(wire: Wire) -> list[str]:
    rows = [(str(f.offset), str(f.bytes), f"`{f.name}`", f.doc) for f in wire.fields]
    return _table(("offset", "bytes", "field", "meaning"), rows)


def enum_table(name: str, word: str) -> Callable[[Wire], list[str]]:
    def table(wire: Wire) -> list[str]:
        rows = []
        for key, n in wire.enums[name].items():
            row = [str(n), f"`{key}`"]
            if any(part == name for part, _ in wire.comments):
                nothing = "reserved" if name == "types" else ""
                row.append(wire.comments.get((name, key), nothing))
            rows.append(tuple(row))
        return _table(("code", word, "meaning")[: len(rows[0])], rows)

    return table


def dtype_table(wire: Wire) -> list[str]:
    rows = [
        (str(code), f"`{name}`", str(wire.dtype_bytes[name]))
        for name, code in wire.enums["dtypes"].items()
    ]
    return _table(("code", "element type", "bytes"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


TABLES: dict[str, Callable[[Wire], list[str]]] = {
    "header": header_table,
    "types": enum_table("types", "type"),
    "flags": enum_table("flags", "flag"),
    "dtypes": dtype_table,
    "ops": enum_table("ops", "reduction"),
    "modes": enum_table("modes", "mode"),
    "causes": enum_table("causes", "cause"),
    "refusals": enum_table("refusals", "refusal"),
}


def docs_page(wire: Wire, page: str) -> str:
    """`page` with the text between each pair of markers replaced; the prose around stays."""
    for name, table in TABLES.items():
        start, end = f"<!-- generated: {name} -->", "<!-- /generated -->"
        block = "\n".join([start, *table(wire), end])
        if start not in page:
            page += f"\n## {name.capitalize()}\n\n{block}\n"
            continue
        before, _, rest = page.partition(start)
        if end not in rest:
            raise ValueError(f"docs/protocol.md: no {end} after {start}")
        page = before + block + rest.partition(end)[2]
    return page


def outputs(wire: Wire, root: Path) -> dict[Path, str]:
    page = root / "docs" / "protocol.md"
    prose = page.read_text() if page.exists() else "# The netfold protocol\n"
    return {
        root / "native" / "core" / "wire_constants.h": c_header(wire),
        root / "src" / "netfold" / "_wire.py": python_module(wire),
        page: docs_page(wire, prose),
    }


def differing(root: Path = ROOT) -> dict[Path, str]:
    """The files that are not what wire.toml says, with what they should be."""
    wanted = outputs(load(SPEC.read_text()), root)
    return {p: text for p, text in wanted.items() if not p.exists() or p.read_text() != text}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare; 1 on a difference")
    check = parser.parse_args().check
    files = differing()
    for path, text in files.items():
        print(f"{path.relative_to(ROOT)}: {'differs from wire/wire.toml' if check else 'written'}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return 1 if check and files else 0


if __name__ == "__main__":
    sys.exit(main())
