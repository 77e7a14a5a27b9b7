"""The parts of the package depend on each other as CONTRIBUTING.md says: imports point downwards, without a cycle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]

# From high to low. A part may import the parts of lower rows; parts of the same row do not import each other.
LAYERS = """
    cli
    benchmark reproduction
    report
    federation
    runs
    trained
    configuration
    training flower
    api data_parallel algorithms certify
    components
    protocol
    sampling trees
    rules attacks policies
    environments
    options
    accelerate registry files
    errors
"""
HEIGHT = {part: -row for row, line in enumerate(LAYERS.split("\n")) for part in line.split()}
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "jaxbyz").rglob("*.py")
}


def imported(name: str) -> Iterator[str]:
    """Modules of the package that a module imports, at the top or inside a function."""
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in FILES)
        elif isinstance(node, ast.ImportFrom) and node.module in FILES:
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from {module if module in FILES else node.module for module in submodules}


IMPORTS = {name: set(imported(name)) for name in FILES}


def part_of(module: str) -> str:
    """The folder or file directly inside the package that a module belongs to; empty for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def test_no_folder_imports_a_higher_one():
    outside_layers = {"jaxbyz", "jaxbyz.__main__"}
    upward = [
        f"{name} imports {target}"
        for name in FILES.keys() - outside_layers
        for target in IMPORTS[name] - outside_layers
        if part_of(name) != part_of(target) and HEIGHT[part_of(target)] >= HEIGHT[part_of(name)]
    ]
    assert not upward


def test_no_modules_import_each_other_in_a_circle():
    TopologicalSorter(IMPORTS).prepare()  # raises CycleError, which names the modules


PLATFORM_MODULE = "jaxbyz.accelerate.platform"
PLATFORM_NAMES = {"cpu", "gpu", "tpu", "cuda", "rocm"}


def platform_checks(path: Path) -> Iterator[str]:
    """Where a file asks JAX which device it runs on, or compares something with the name of a platform."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = {getattr(node, field, None) for field in ("id", "attr", "name")}  # of a variable, attribute, import
        values = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
        if "default_backend" in names or (isinstance(node, ast.Compare) and values & PLATFORM_NAMES):
            yield f"{path.relative_to(ROOT)}:{node.lineno}"


def test_only_accelerate_asks_which_device_it_runs_on():
    others = [name for name in FILES if part_of(name) != "accelerate"]
    assert not [name for name in others if PLATFORM_MODULE in IMPORTS[name]]
    assert not [place for name in others for place in platform_checks(FILES[name])]
