"""House rules that a machine can check; every breach is one line `path:line: error: …`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LINE_COLUMNS_MAX = 100
FILE_LINES_MAX = 800

# Breaches that are meant, as "path:rule" with the reason.
ALLOWED: dict[str, str] = {}

# Arrows point inwards: what each native folder may include of ours (`wire_constants.h` is core's).
NATIVE_MAY_INCLUDE = {
    "core": {"core"},
    "io": {"core", "io"},
    "sim": {"core", "sim"},
    "bind": {"core", "io", "sim", "bind"},
    "tests": {"core", "io", "sim", "tests"},
}
# The core is a function of its arguments: no threads, clock, system calls or console in it. What
# <...> it includes is the standard library or a compiler's intrinsics, which have no directory.
CORE_MAY_NOT_INCLUDE = re.compile(
    r"thread|mutex|shared_mutex|condition_variable|future|semaphore|stop_token|latch|barrier"
    r"|chrono|ctime|time\.h|random|iostream|fstream|filesystem|cstdio|stdio\.h"
    r"|unistd\.h|fcntl\.h|poll\.h|pthread\.h|errno\.h|.*/.*"
)

Breach = tuple[int, str, str]  # line, rule, what is wrong


def _files(*patterns: str) -> list[Path]:
    return sorted(p for pattern in patterns for p in ROOT.glob(pattern) if p.is_file())


NATIVE = _files("native/**/*.cpp", "native/**/*.h")
PYTHON = _files("src/**/*.py", "wire/*.py", "tests/**/*.py", "tools/*.py", "bench/**/*.py")
SHIPPED = [p for p in PYTHON if p.is_relative_to(ROOT / "src")]
PAGES = _files("*.md", "docs/**/*.md", "examples/**/*.md")
SCRIPTS = _files(".ci/*", "tools/*.sh", "CMakeLists.txt", "pyproject.toml")


def lines_are_short(_: Path, text: str) -> Iterator[Breach]:
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > LINE_COLUMNS_MAX:
            yield number, "length", f"{len(line)} columns, not ≤ {LINE_COLUMNS_MAX}"


def files_are_short(_: Path, text: str) -> Iterator[Breach]:
    count = text.count("\n")
    if count > FILE_LINES_MAX:
        yield count, "size", f"{count} lines, not ≤ {FILE_LINES_MAX}"


def nothing_is_left_over(_: Path, text: str) -> Iterator[Breach]:
    # Put together here so that this file passes its own test.
    mark = re.compile(rf"\b({'FIX' + 'ME'}|{'TO' + 'DO'}|{'XX' + 'X'})\b")
    for number, line in enumerate(text.splitlines(), 1):
        if found := mark.search(line):
            yield number, "leftover", f"{found[0]} left over"


def includes_point_inwards(path: Path, text: str) -> Iterator[Breach]:
    folder = path.relative_to(ROOT / "native").parts[0]
    for number, line in enumerate(text.splitlines(), 1):
        if own := re.match(r'\s*#\s*include\s+"([^"]+)"', line):
            target = own[1].split("/")[0]
            if "/" not in own[1]:
                yield number, "include", f"name {own[1]} from native/, as in core/worker.h"
            elif target not in NATIVE_MAY_INCLUDE.get(folder, set()):
                yield number, "include", f"{folder} may not include {own[1]}"
        elif (
            folder == "core"
            and (system := re.match(r"\s*#\s*include\s+<([^>]+)>", line))
            and CORE_MAY_NOT_INCLUDE.fullmatch(system[1])
        ):
            yield number, "include", f"the core does without <{system[1]}>"


def python_is_deterministic_and_honest(_: Path, text: str) -> Iterator[Breach]:
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr="time")):
                yield node.lineno, "clock", "time.time() jumps: use time.monotonic()"
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Name(id="random"),
                    attr=name,
                )
            ) if name not in {"Random", "SystemRandom"}:
                yield node.lineno, "random", f"random.{name}() has no seed: use random.Random(seed)"
            case ast.Call(func=ast.Attribute(attr="Random" | "default_rng"), args=[], keywords=[]):
                yield node.lineno, "random", "a generator without a seed cannot be replayed"
            case ast.ExceptHandler(type=kind, body=[ast.Pass()]) if kind is None or ast.unparse(
                kind
            ) in {"Exception", "BaseException"}:
                yield node.lineno, "swallow", "an except that hides every error"


def pages_have_one_title(_: Path, text: str) -> Iterator[Breach]:
    titles = []
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and line.startswith("# "):
            titles.append(number)
    if len(titles) != 1:
        yield (titles or [1])[-1], "title", f"{len(titles)} titles (# …), not 1"


RULES: list[tuple[Callable[[Path, str], Iterator[Breach]], list[Path]]] = [
    (lines_are_short, NATIVE + PYTHON + SCRIPTS),
    (files_are_short, NATIVE + SHIPPED),
    (nothing_is_left_over, NATIVE + PYTHON + SCRIPTS + PAGES),
    (includes_point_inwards, NATIVE),
    (python_is_deterministic_and_honest, SHIPPED),
    (pages_have_one_title, PAGES),
]


@pytest.mark.parametrize(("rule", "files"), RULES, ids=[rule.__name__ for rule, _ in RULES])
def test_tree(rule: Callable[[Path, str], Iterator[Breach]], files: list[Path]) -> None:
    errors = []
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        for line, kind, what in rule(path, path.read_text()):
            if f"{name}:{kind}" not in ALLOWED:
                errors.append(f"{name}:{line}: error: {what}")
    assert not errors, "\n" + "\n".join(errors)


@pytest.mark.parametrize(
    ("rule", "path", "text", "count"),
    [
        (lines_are_short, "src/a.py", "x" * 101, 1),
        (files_are_short, "src/a.py", "\n" * 801, 1),
        (nothing_is_left_over, "src/a.py", "# TO" + "DO later", 1),
        (includes_point_inwards, "native/core/a.h", '#include "core/b.h"\n#include <array>', 0),
        (includes_point_inwards, "native/core/a.h", '#include "io/b.h"\n#include <thread>', 2),
        (includes_point_inwards, "native/core/a.h", "#include <sys/socket.h>", 1),
        (includes_point_inwards, "native/io/a.h", '#include "core/b.h"\n#include <thread>', 0),
        (includes_point_inwards, "native/io/a.h", '#include "sim/b.h"', 1),
        (python_is_deterministic_and_honest, "src/a.py", "time.time(); random.random()", 2),
        (python_is_deterministic_and_honest, "src/a.py", "random.Random(7); Random", 0),
        (python_is_deterministic_and_honest, "src/a.py", "np.random.default_rng()", 1),
        (python_is_deterministic_and_honest, "src/a.py", "try: f()\nexcept Exception: pass", 1),
        (python_is_deterministic_and_honest, "src/a.py", "try: f()\nexcept OSError: pass", 0),
        (pages_have_one_title, "a.md", "# A\n```\n# no title\n```\n## B\n", 0),
        (pages_have_one_title, "a.md", "# A\n# B\n", 1),
    ],
)
def test_rule_sees_what_it_is_for(
    rule: Callable[[Path, str], Iterator[Breach]], path: str, text: str, count: int
) -> None:
    assert len(list(rule(ROOT / path, text))) == count


def test_allow_list_names_files_that_exist() -> None:
    for entry, reason in ALLOWED.items():
        assert (ROOT / entry.partition(":")[0]).is_file(), entry
        assert reason
