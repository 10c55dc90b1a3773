"""Promises about the repository itself: small, documented as it is, arrows in one direction."""

import ast
import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def lines_of_code(path: Path) -> int:
    """Lines that carry code: no blank lines, comments or docstrings."""
    source = path.read_text()
    lines: set[int] = set()
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in layout and token.string:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


BINDINGS = ("torch", "tensorflow", "keras", "lightning")
# What is read together, and the lines of code that a reader can be asked for.
# We aim at 2,700 for core and gradients together, 1,200 for each binding and 5,300 for hvdlite.
LIMITS = {
    "core": 3225, "gradients": 235, "torch": 1415, "tensorflow": 1320, "keras": 500,
    "lightning": 290, "elastic": 505, "testing": 65, "hvdrun": 2090,
}  # fmt: skip
LIMIT_OF_ALL = 7530  # of hvdlite


def part_of_the_runtime(path: Path) -> str:
    """The part that a file is read with."""
    top, *below = path.relative_to(ROOT).parts
    if top == "hvdrun":
        return top
    if "elastic" in (*below[:-1], path.stem):
        return "elastic"  # also what a binding adds to it
    if path.stem == "testing":
        return "testing"  # what tests reach into the runtime with
    return below[0] if below[0] in (*BINDINGS, "gradients") else "core"


def test_the_runtime_can_be_read_in_an_afternoon():
    counts = dict.fromkeys(LIMITS, 0)
    for path in python_files("hvdlite", "hvdrun"):
        counts[part_of_the_runtime(path)] += lines_of_code(path)
    assert {part for part, count in counts.items() if not 0 < count <= LIMITS[part]} == set(), (
        counts
    )
    assert sum(counts.values()) - counts["hvdrun"] <= LIMIT_OF_ALL, counts


def test_ranks_need_no_launcher_and_the_launcher_needs_no_runtime():
    for path in python_files("hvdrun"):
        # A version and a table of variables, which import nothing themselves.
        allowed = {"hvdlite._version", "hvdlite.runtime.launchers", "hvdrun"}
        ours = {name for name in imports(path) if name.split(".")[0] in ("hvdlite", "hvdrun")}
        assert {name for name in ours if name.split(".")[0] == "hvdlite"} <= allowed, path
    for path in python_files("hvdlite"):
        if path.name != "__init__.py":  # hvdlite.run
            assert not {name for name in imports(path) if name.split(".")[0] == "hvdrun"}, path


def test_the_table_of_launchers_costs_the_launcher_nothing():
    assert imports(ROOT / "hvdlite" / "runtime" / "launchers.py") == {"collections.abc", "typing"}


def test_old_names_are_beside_the_runtime():
    """One line in each binding asks for them, and they ask the runtime for a table only."""
    used = [path for path in python_files("hvdlite", "hvdrun") if "hvdnames" in imports(path)]
    names = ("keras", "tensorflow", "torch")
    bindings = [ROOT / "hvdlite" / name / "__init__.py" for name in names]
    assert used == bindings
    for path in python_files("hvdnames"):
        ours = {name for name in imports(path) if name.split(".")[0] in ("hvdlite", "horovod")}
        assert ours <= {"hvdlite.runtime.launchers"}, path
    assert sum(map(lines_of_code, python_files("hvdnames"))) <= 1038


def test_no_file_is_long():
    files = python_files(
        "hvdlite",
        "hvdrun",
        "horovod",
        "hvdnames",
        "hvdlab",
        "scripts",
        "tools",
        "tests",
        "benchmarks",
    )
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: length for name, length in lengths.items() if length > 420} == {}


def imports(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


@pytest.mark.parametrize("package", ["hvdlab", "scripts", "tests", "benchmarks"])
def test_the_runtime_needs_none_of_its_users(package):
    for path in python_files("hvdlite", "hvdrun", "horovod", "hvdnames"):
        assert not {name for name in imports(path) if name.split(".")[0] == package}, path


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "keras", "lightning"])
def test_a_framework_is_imported_by_its_binding_only(framework):
    for path in python_files("hvdlite"):
        if path.relative_to(ROOT).parts[1] not in BINDINGS:
            names = {name.split(".")[0] for name in imports(path)}
            assert framework not in names, path


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/instructor.md"])
def test_make_commands_on_the_page_exist(page):
    commands = re.findall(r"\bmake (?!sure)([a-z]+)", (ROOT / page).read_text())
    assert commands
    assert set(commands) <= make_targets()


def test_make_help_lists_every_target():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    listed = set(re.findall(r"^  ([a-z]+) ", done.stdout, re.MULTILINE))
    assert listed == make_targets()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "labs/README.md"])
def test_files_named_on_the_page_exist(page):
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    paths = re.findall(r"\b(?:scripts|docs|tests|tools)/[\w./-]+\w", text)
    for name in links:
        assert (ROOT / page).parent.joinpath(name).exists(), name
    for name in paths:
        assert (ROOT / name).exists(), name


def test_the_conversion_in_the_readme_is_the_one_in_the_scripts():
    (diff,) = re.findall(r"```diff\n(.*?)```", README, re.DOTALL)
    before = squeezed("scripts/fashion_mnist_torch.py")
    after = squeezed("scripts/solutions/fashion_mnist_torch.py")
    changes = [line for line in diff.splitlines() if line[:1] in "+-" and line[1:].strip()]
    assert len(changes) > 10
    for line in changes:
        text = "".join(line[1:].split("#")[0].split())
        assert text in (after if line[0] == "+" else before), line
        if line[0] == "+":
            assert text not in before, line


def squeezed(name: str) -> str:
    """A file's text without any white space, so that a diff may wrap lines as it likes."""
    return "".join((ROOT / name).read_text().split())


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def imported_at_once(path: Path) -> set[str]:
    """The modules of hvdlite that a file imports when it is imported itself."""
    found: set[str] = set()
    todo = list(ast.parse(path.read_text()).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if is_module(name) else node.module)
        elif isinstance(node, ast.Try):
            todo += node.body
    return {name for name in found if name.startswith("hvdlite.")}


def left_in_circles(needs: dict[str, set[str]]) -> dict[str, set[str]]:
    """What remains when whatever needs nothing else is taken away, again and again."""
    needs = {name: found & needs.keys() - {name} for name, found in needs.items()}
    while free := {name for name, found in needs.items() if not found}:
        needs = {name: found - free for name, found in needs.items() if name not in free}
    return needs


def modules_of_hvdlite() -> dict[str, set[str]]:
    modules = {}
    for path in python_files("hvdlite"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        modules[name] = imported_at_once(path)
    return modules


def test_no_module_needs_itself():
    assert left_in_circles(modules_of_hvdlite()) == {}


def test_no_folder_needs_itself():
    """A file beside the folders counts as one."""

    def folder(name: str) -> str:
        return ".".join(name.split(".")[:2])

    needs: dict[str, set[str]] = {}
    for name, found in modules_of_hvdlite().items():
        if name != "hvdlite":
            needs.setdefault(folder(name), set()).update(map(folder, found))
    assert left_in_circles(needs) == {}
