"""The rules of structure: imports point one way, importing costs no torch, nothing grows too large."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import armillary

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "armillary"
FILES = sorted(PACKAGE.rglob("*.py"))
ALL_FILES = [
    f for part in ("armillary", "tests", "examples", "benchmarks") for f in (ROOT / part).rglob("*.py")
]

# A part of the package may import itself and parts of earlier layers, but no other part of its own layer.
LAYERS = (
    ("errors", "names"),
    ("arguments",),
    ("alone", "guard", "requests", "schema", "shards"),
    ("facts", "tools"),
    ("modes",),
    ("settle",),
    ("media", "sequence"),
    ("answers", "attention", "lowbit", "robots", "sim", "step"),
    ("model", "quantised"),
    ("published",),
    ("weights",),
    ("adapters", "codecs", "flow", "locate"),
    ("decode",),
    ("slots",),
    ("memory", "prompts"),
    ("wording",),
    ("tasks",),
    ("budget", "layout", "options", "train"),
    ("world",),
    ("loading",),
    ("doctor", "eval"),
    ("serve",),
    ("terminal",),
    ("batch",),
    ("cli",),
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
IMPORTED_BY = {
    "sim": {"cli", "eval", "serve", "train"},
    "train": {"cli"},
    "serve": {"cli"},
    "eval": {"cli"},
    "doctor": {"cli"},
}
SIM_IMPORTS = {"sim", "media", "requests", "errors"}
EXTRAS = {
    "pymunk": {"sim"},
    "gymnasium": {"sim"},
    "pyarrow": {"sim", "train"},
    "fastapi": {"serve"},
    "starlette": {"serve"},
    "uvicorn": {"serve"},
    "python_multipart": {"serve"},
    "websockets": {"serve"},
    "msgpack": {"serve"},
    "prometheus_client": {"serve"},
}
NEVER = {"diffusers", "transformers", "peft", "torchvision"}


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def imported_modules(file: Path) -> Iterator[str]:
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} relative import"
            module = str(node.module)
            yield from (
                (f"armillary.{alias.name}" for alias in node.names) if module == "armillary" else (module,)
            )


def edges() -> Iterator[tuple[Path, str, str]]:
    """Every import of one part by another, as (file, importing part, imported part)."""
    for file in FILES:
        if file.parent == PACKAGE and file.stem in ("__init__", "__main__"):
            continue
        for module in imported_modules(file):
            names = module.split(".")
            if names[0] == "armillary" and len(names) > 1 and names[1] != "__version__":
                yield file, part_of(file), names[1]


def functions(file: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{file.relative_to(ROOT)}:{node.lineno} {node.name}", node


def count_arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = function.args
    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([n for n in names if n not in ("self", "cls")]) + bool(given.vararg) + bool(given.kwarg)


def modules_loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('LOADED', *{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.rpartition("LOADED")[2].split())


def test_every_part_has_its_layer() -> None:
    unknown = {part_of(f) for f in FILES} - LEVEL.keys() - {"__init__", "__main__", "pocket"}
    assert not unknown, "place these in LAYERS"


def test_imports_point_one_way() -> None:
    wrong = [f"{f.relative_to(ROOT)} imports {b}" for f, a, b in edges() if a != b and LEVEL[b] >= LEVEL[a]]
    assert not wrong


def test_only_entry_points_import_entry_points() -> None:
    wrong = [
        f"{f.relative_to(ROOT)} imports {b}" for f, a, b in edges() if a not in {b, *IMPORTED_BY.get(b, {a})}
    ]
    assert not wrong


def test_the_simulator_knows_media_only() -> None:
    assert not [
        f"{f.relative_to(ROOT)} imports {b}" for f, a, b in edges() if a == "sim" and b not in SIM_IMPORTS
    ]


def test_extras_are_imported_by_their_part_only() -> None:
    found = [(f, module.split(".")[0]) for f in FILES for module in imported_modules(f)]
    assert not [
        f"{f.relative_to(ROOT)} imports {m}"
        for f, m in found
        if part_of(f) not in EXTRAS.get(m, {part_of(f)})
    ]


def test_oracles_are_never_imported_by_the_package() -> None:
    found = [(f, module.split(".")[0]) for f in FILES for module in imported_modules(f)]
    assert not [f"{f.relative_to(ROOT)} imports {m}" for f, m in found if m in NEVER]


def test_importing_the_package_loads_no_torch() -> None:
    loaded = modules_loaded_by("import armillary")
    assert "armillary" in loaded
    assert not loaded & {"torch", "numpy", "av", "PIL", "pydantic"}


def test_the_help_page_loads_no_torch() -> None:
    code = """
from armillary.cli import main
sys.argv = ["armillary", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code
"""
    loaded = modules_loaded_by(code)
    assert "typer" in loaded
    assert "torch" not in loaded


def test_requests_and_errors_load_no_torch() -> None:
    assert "torch" not in modules_loaded_by("import armillary.requests, armillary.errors")


def test_public_names_are_sorted_and_resolve() -> None:
    assert armillary.__all__ == sorted(armillary.__all__)
    assert all(getattr(armillary, name) is not None for name in armillary.__all__)


def test_what_a_caller_catches_and_checks_is_public() -> None:
    assert {"BadRequest", "Cancelled", "load", "validate"} <= set(armillary.__all__)
    assert armillary.validate("generate", prompt="a disc", frames=10).rounded["frames"]["made"] == 13


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = armillary.nothing


def test_no_function_is_over_60_lines() -> None:
    lengths = {name: 1 + (f.end_lineno or 0) - f.lineno for file in ALL_FILES for name, f in functions(file)}
    assert not {name: length for name, length in lengths.items() if length > 60}


def test_no_file_is_over_400_lines() -> None:
    lengths = {str(f.relative_to(ROOT)): len(f.read_text().splitlines()) for f in ALL_FILES}
    assert not {name: length for name, length in lengths.items() if length > 400}


def test_public_functions_take_at_most_8_arguments() -> None:
    """Commands of the command line are exempt: there an argument is an option that the user sees."""
    counts = {
        name: count_arguments(f)
        for file in FILES
        if part_of(file) != "cli"
        for name, f in functions(file)
        if not f.name.startswith("_")
    }
    assert not {name: count for name, count in counts.items() if count > 8}
