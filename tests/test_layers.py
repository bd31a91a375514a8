"""The import rule of the house (DESIGN section 2), read from the source: what may know what."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "evalpipe"
MAX_LINES = 400  # CONVENTIONS rule 1: split there

#: Floors of the house. An import goes to a lower floor or stays in its own room; sideways is not down.
FLOORS = {
    room: floor
    for floor, rooms in enumerate(
        [
            ("errors", "records"),
            ("config",),  # a value too, and raises the errors
            ("control", "loadtest", "data", "prompt", "scoring"),
            ("store", "endpoint", "limiter", "sim"),
            ("runtime",),
            ("report",),
            ("api",),
            ("evalpipe",),  # the package's own __init__
            ("cli",),
        ]
    )
    for room in rooms
}
#: All that the pure rooms may use: no clock, no I/O, no loop, no foreign package.
PURE = frozenset(
    {"__future__", "bisect", "collections", "dataclasses", "difflib", "enum", "inspect", "math", "random", "statistics"}
    | {"types", "typing"}
)
PURE_ROOMS = {"control": {"control", "errors", "records"}, "loadtest": {"control", "errors", "loadtest"}}


@dataclass(frozen=True)
class Import:
    """One import statement. line: file and line, for the message; name: dotted, as Python resolves it."""

    line: str
    room: str
    name: str

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]

    @property
    def target(self) -> str:
        """Room of our own that is imported, "" for a foreign module."""
        if self.top != "evalpipe":
            return ""
        second = self.name.split(".")[1] if "." in self.name else "evalpipe"
        return second if second in FLOORS else "evalpipe"  # a name of the package itself, like __version__


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "evalpipe" if first == "__init__" else first


@cache
def nodes() -> tuple[tuple[Path, ast.AST], ...]:
    """Every node of every module of the package."""
    trees = ((path, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(PACKAGE.rglob("*.py")))
    return tuple((path, node) for path, tree in trees for node in ast.walk(tree))


def names_in(node: ast.AST) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom(level=0, module=str(module)):
            return [f"{module}.{alias.name}" for alias in node.names]
        case ast.ImportFrom():
            return ["evalpipe.RELATIVE"]  # ours are absolute, so that this file can read them
        case ast.Call(func=ast.Name(id="__import__") | ast.Attribute(attr="import_module") | ast.Name("import_module")):
            return [str(arg.value) for arg in node.args if isinstance(arg, ast.Constant)]
    return []


@cache
def imports() -> tuple[Import, ...]:
    """Every import of the package, inside functions and under TYPE_CHECKING too."""
    return tuple(Import(place(path, node), room_of(path), name) for path, node in nodes() for name in names_in(node))


def place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(REPOSITORY)}:{getattr(node, 'lineno', 0)}"


def shown(wrong: Iterator[Import]) -> list[str]:
    return [f"{one.line} imports {one.name}" for one in wrong]


def test_every_room_has_a_floor():
    """A new module or folder must be given its place before it can be judged."""
    rooms = {room_of(path) for path, _ in nodes()}

    assert rooms <= FLOORS.keys()
    assert len(imports()) > 300, "the walk has found the package"


def test_only_runtime_imports_ray():
    """Ray stays behind one door; all else runs without a cluster."""
    users = {one.room for one in imports() if one.top == "ray"}

    assert users == {"runtime"}


def test_imports_point_down():
    """No module knows of a floor above its own, or of another room on it."""
    wrong = (one for one in imports() if one.target not in ("", one.room) and FLOORS[one.target] >= FLOORS[one.room])

    assert shown(wrong) == []


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_pure_rooms_import_nothing_impure(room: str):
    """Control and load-test arithmetic have no clock, no I/O, no loop: they run in virtual time as they are."""
    wrong = (
        one for one in imports() if one.room == room and one.top not in PURE and one.target not in PURE_ROOMS[room]
    )

    assert shown(wrong) == []


def test_the_allow_list_holds_nothing_unused():
    """A module that no pure room needs any more leaves the list: it stays as tight as the code is."""
    used = {one.top for one in imports() if one.room in PURE_ROOMS}

    assert used >= PURE
    assert sys.stdlib_module_names >= PURE


def test_only_the_command_line_prints():
    """A library that prints cannot be used by a program with a screen of its own."""
    calls = [
        place(path, node)
        for path, node in nodes()
        if room_of(path) != "cli" and isinstance(node, ast.Name) and node.id == "print"
    ]

    assert calls == []


def test_modules_fit_a_reading():
    """No module is longer than 400 lines."""
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}

    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_the_data_folder_is_no_package():
    """A package `datasets` here would hide the library of that name wherever we run from the repository."""
    assert not (REPOSITORY / "datasets" / "__init__.py").exists()
