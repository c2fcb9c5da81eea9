"""The shape of the code: which room may import which, no cycles, sizes, one name for one thing.

docs/how-it-works.md says what lives in each room.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]

BELOW = {
    "common": set[str](),
    "protocol": {"common"},
    "sql.schema": set[str](),
    "sql.queries": set[str](),
    "storage": {"common", "protocol", "sql.schema", "sql.queries"},
    "sql.http": {"common", "protocol", "storage"},
    "coordinator": {"common", "protocol", "storage", "sql.queries"},
    "feeds": {"common", "storage", "sql.queries"},
    "broker": {"common", "protocol", "storage", "sql.http", "sql.queries", "coordinator", "feeds"},
    "spark_jobs": {"common", "protocol", "storage", "sql.queries", "feeds"},
}
"""Room: the rooms that it may import. sql/schema and sql/queries hold SQL, and next to no code."""

HOUSE = "brokerhouse"
"""What is imported is below this name: the names of modules here leave it out."""

STARTS_JOBS = "broker.cli.jobs"
"""The only module of `broker` that may import `spark_jobs`."""


def modules() -> dict[str, Path]:
    found = {}
    for room in BELOW:
        for path in sorted((PROJECT / room.replace(".", "/")).rglob("*.py")):
            name = ".".join(path.relative_to(PROJECT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text())


@cache
def imported(name: str) -> frozenset[str]:
    """What a module imports of the project, wherever in the file the import stands."""
    return frozenset(_imported(name))


def _imported(name: str) -> Iterator[str]:
    for module, names in import_statements(parsed(name)):
        short = module.removeprefix(f"{HOUSE}.")
        if short in MODULES:
            inner = [f"{short}.{one}" for one in names]
            yield from (one if one in MODULES else short for one in inner or [short])


def import_statements(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """Each module that is imported, and what is taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, [alias.name for alias in node.names]


SCRIPT_IMPORT = re.compile(
    r"^\s*(?:from (?=[\w.]+ import)|import (?=[\w.]+ *$))([\w.]+)", re.MULTILINE
)


def room_of(name: str) -> str:
    return next(room for room in BELOW if f"{name}.".startswith(f"{room}."))


def test_every_package_is_installed() -> None:
    with (PROJECT / "pyproject.toml").open("rb") as file:
        declared = tomllib.load(file)["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(PROJECT) for path in MODULES.values()}
    assert {".".join((HOUSE, *folder.parts)) for folder in folders} <= set(declared)
    assert {name.partition(".")[0] for name in declared} == {HOUSE}


def test_no_file_imports_a_room_without_the_name_of_the_house() -> None:
    """As `broker.node` and `brokerhouse.broker.node` a module would be loaded twice."""
    rooms = {room.partition(".")[0] for room in BELOW}
    folders = (PROJECT / name for name in (*rooms, HOUSE, "bench", "tests"))
    files = [path for folder in folders for path in folder.rglob("*.py")]
    wrong = [
        f"{path.relative_to(PROJECT)} imports {module}"
        for path in files
        for module in named_modules(ast.parse(path.read_text()))
        if module.partition(".")[0] in rooms
    ]
    assert not wrong


def named_modules(tree: ast.Module) -> Iterator[str]:
    """Those of import statements, also in scripts that are texts, of calls as
    `files("brokerhouse.sql")` and `setattr("brokerhouse.broker.node.X", ...)`, and of lists.
    """
    yield from (module for module, _ in import_statements(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Name("files" | "import_module") | ast.Attribute(attr="setattr"),
                args=[ast.Constant(str(module)), *_],
            ):
                yield module
            case ast.Call(func=ast.Name("word_set"), args=[ast.Constant(str(text))]):
                yield from (word for word in text.split() if "." in word and word in MODULES)
            case ast.Constant(str(text)):
                yield from SCRIPT_IMPORT.findall(text)


@pytest.mark.parametrize("room", BELOW)
def test_a_room_imports_only_rooms_below_it(room: str) -> None:
    wrong = [
        f"{name} imports {other}"
        for name in MODULES
        if room_of(name) == room
        for other in imported(name)
        if room_of(other) not in {room} | BELOW[room]
        and not (name == STARTS_JOBS and other.startswith("spark_jobs."))
    ]

    assert not wrong


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = {name: set(imported(name)) - {name} for name in MODULES}
    while ends := {name for name, others in graph.items() if not others}:
        graph = {name: others - ends for name, others in graph.items() if name not in ends}
    while unused := graph.keys() - {other for others in graph.values() for other in others}:
        graph = {name: others for name, others in graph.items() if name not in unused}

    assert not graph, f"files that import each other: {sorted(graph)}"


MODULE_MAX_LINES = 600
CLASS_MAX_LINES, CLASS_MAX_METHODS = 350, 25
CONSTRUCTOR_MAX_ARGUMENTS = 7


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for name in MODULES:
        for node in ast.walk(parsed(name)):
            if isinstance(node, ast.ClassDef):
                yield name, node


def methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [one for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]


def test_no_module_is_too_long() -> None:
    lines = {name: path.read_text().count("\n") for name, path in MODULES.items()}

    assert {name: count for name, count in lines.items() if count > MODULE_MAX_LINES} == {}


def test_no_class_is_too_large() -> None:
    sizes = {
        f"{name}.{node.name}": ((node.end_lineno or 0) - node.lineno + 1, len(methods(node)))
        for name, node in classes()
    }

    assert {
        name: size
        for name, size in sizes.items()
        if size[0] > CLASS_MAX_LINES or size[1] > CLASS_MAX_METHODS
    } == {}


def test_no_constructor_takes_too_many_arguments() -> None:
    counts = {
        f"{name}.{node.name}": len(one.args.args) - 1 + len(one.args.kwonlyargs)
        for name, node in classes()
        for one in methods(node)
        if one.name == "__init__"
    }

    assert {
        name: count for name, count in counts.items() if count > CONSTRUCTOR_MAX_ARGUMENTS
    } == {}


def test_a_class_name_stands_for_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for name, node in classes():
        places.setdefault(node.name, []).append(name)

    assert {name: found for name, found in places.items() if len(found) > 1} == {}
