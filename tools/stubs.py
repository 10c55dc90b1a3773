"""Write the stubs (*.pyi) from which editors and type checkers learn where names come from.

They can't follow two things: the import hook that serves `horovod.torch` as `hvdlite.torch`, and
names that a package of hvdlite takes from elsewhere by star, or only when they are asked for. A
stub says it for each name, `from where import name as name`; signatures and docstrings stay where
they are written. Nothing is imported for this: the sources are read. `--check` writes nothing.
"""

import ast
import copy
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = ("hvdlite", "hvdrun", "horovod")
HEADING = "# Written by tools/stubs.py.\n"
# Packages of hvdlite whose own names need a stub, and modules of Horovod's with their places.
PACKAGES = ("hvdlite", "hvdlite.torch", "hvdlite.tensorflow", "hvdlite.tensorflow.keras")
PACKAGES += ("hvdlite.keras",)
SERVED = {
    "horovod.common": "hvdlite",
    "horovod.common.basics": "horovod._basics",
    "horovod.common.elastic": "hvdlite.elastic.state",
    "horovod.common.exceptions": "hvdlite.exceptions",
    "horovod.common.process_sets": "hvdlite.process_sets",
    "horovod.common.util": "horovod._common_util",
    "horovod.keras": "hvdlite.keras",
    "horovod.keras.callbacks": "hvdlite.keras.callbacks",
    "horovod.keras.elastic": "hvdlite.keras.elastic",
    "horovod.run": "horovod.runner",
    "horovod.run.runner": "horovod.runner.launch",
    "horovod.tensorflow": "hvdlite.tensorflow",
    "horovod.tensorflow.compression": "hvdlite.tensorflow.compression",
    "horovod.tensorflow.elastic": "hvdlite.tensorflow.elastic",
    "horovod.tensorflow.functions": "hvdlite.tensorflow.functions",
    "horovod.tensorflow.keras": "hvdlite.tensorflow.keras",
    "horovod.tensorflow.keras.callbacks": "hvdlite.tensorflow.keras.callbacks",
    "horovod.tensorflow.keras.elastic": "hvdlite.tensorflow.keras.elastic",
    "horovod.tensorflow.mpi_ops": "horovod._tensorflow_mpi_ops",
    "horovod.tensorflow.sync_batch_norm": "hvdlite.tensorflow.sync_batch_norm",
    "horovod.tensorflow.util": "horovod._tensorflow_util",
    "horovod.torch": "hvdlite.torch",
    "horovod.torch.compression": "hvdlite.torch.compression",
    "horovod.torch.elastic": "hvdlite.torch.elastic",
    "horovod.torch.elastic.sampler": "hvdlite.torch.elastic.sampler",
    "horovod.torch.elastic.state": "hvdlite.torch.elastic.state",
    "horovod.torch.functions": "hvdlite.torch.functions",
    "horovod.torch.mpi_ops": "horovod._torch_mpi_ops",
    "horovod.torch.optimizer": "hvdlite.torch.optimizer",
    "horovod.torch.sync_batch_norm": "hvdlite.torch.sync_batch_norm",
}
# What the import hook adds to a module, and what a module gives when it is asked for.
ADDED = {
    "horovod.tensorflow": [
        "from horovod.tensorflow import mpi_ops as mpi_ops, util as util",
        "from horovod._tensorflow_util import _executing_eagerly as _executing_eagerly",
        "from horovod._common_util import gpu_available as gpu_available",
        "from horovod._tensorflow_util import refs_to_vars as refs_to_vars",
        "from horovod._tensorflow_util import vars_to_refs as vars_to_refs",
    ],
    "horovod.torch": ["from horovod.torch import mpi_ops as mpi_ops"],
    "horovod.torch.optimizer": [
        "from hvdlite.torch.mixin import DistributedMixin",
        "_DistributedOptimizer = DistributedMixin",
    ],
}
LAZY = {"hvdlite": {"run": "hvdrun.function", "": "hvdlite.basics"}}
ROOT_STUB = """\
from horovod import common as common
from horovod import keras as keras
from horovod import runner as runner
from horovod import tensorflow as tensorflow
from horovod import torch as torch
from hvdrun.function import run as run

__version__: str
"""


def path_of(module: str) -> Path | None:
    """A module's source; None for a module that is not ours."""
    base = ROOT.joinpath(*module.split("."))
    found = [base / "__init__.py", base.with_suffix(".py")]
    return next((path for path in found if path.is_file()), None)


@functools.cache
def bindings(module: str) -> dict[str, ast.AST]:
    """What a module binds at its top level, by name; the last one counts. "*" has star imports."""
    found: dict[str, ast.AST] = {}
    path = path_of(module)
    todo: list[ast.AST] = list(ast.parse(path.read_text()).body) if path else []
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.If | ast.Try):
            todo[:0] = [*node.body, *node.orelse]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                stars = found.get("*", ast.Tuple([]))
                if alias.name == "*" and isinstance(stars, ast.Tuple):
                    found["*"] = ast.Tuple([*stars.elts, ast.Name(node.module or "")])
                else:
                    found[alias.asname or alias.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                found.update((name.id, node) for name in names if isinstance(name, ast.Name))
    return found


def origin(module: str, name: str) -> tuple[str, str]:
    """The module that defines what `module` calls `name`, and its name there."""
    node = bindings(module).get(name)
    if isinstance(node, ast.ImportFrom):
        source = node.module or ""
        (real,) = [a.name for a in node.names if (a.asname or a.name) == name]
        if not path_of(source) or path_of(f"{source}.{real}"):
            return source, real  # of another project, or a module itself
        return origin(source, real)
    if node is None:
        for each in stars(module):
            if name in exported(each):
                return origin(each, name)
        lazy = LAZY.get(module, {})
        if lazy:
            return origin(lazy.get(name, lazy[""]), name)
        raise LookupError(f"{module} has no {name}")
    return module, name


def stars(module: str) -> list[str]:
    """The modules of which a module imports everything."""
    node = bindings(module).get("*")
    return [each.id for each in node.elts if isinstance(each, ast.Name)] if node else []


def listed(module: str, name: str) -> list[str]:
    """A list of names, such as `__all__`, which may hold others with a star."""
    node = bindings(module)[name]
    if isinstance(node, ast.ImportFrom):
        (real,) = [a.name for a in node.names if (a.asname or a.name) == name]
        return listed(node.module or "", real)
    assert isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.List)
    found: list[str] = []
    for each in node.value.elts:
        if isinstance(each, ast.Starred) and isinstance(each.value, ast.Name):
            found += listed(module, each.value.id)
        else:
            found.append(ast.literal_eval(each))
    return found


def exported(module: str) -> list[str]:
    """The names that a program may import: `__all__`, or all of ours without an underscore."""
    known = bindings(module)
    if "__all__" in known:
        return sorted(set(listed(module, "__all__")))
    names = {name for each in stars(module) for name in exported(each)}
    own = module.startswith("horovod._")  # written for these imports, with their private names
    for name, node in known.items():
        is_ours = not isinstance(node, ast.ImportFrom) or (node.module or "").startswith(OURS)
        if name != "*" and is_ours and (own or not name.startswith("_")):
            names.add(name)
    return sorted(names)


def partial(module: str, name: str) -> str | None:
    """The signature of a name that is another function with its first arguments given."""
    node = bindings(module).get(name)
    call = node.value if isinstance(node, ast.Assign) else None
    if not (isinstance(call, ast.Call) and ast.unparse(call.func).endswith("partial")):
        return None
    place, real = origin(module, ast.unparse(call.args[0]))
    function = bindings(place)[real]
    assert isinstance(function, ast.FunctionDef)
    arguments = copy.deepcopy(function.args)
    del arguments.args[: len(call.args) - 1]
    keep = [d if isinstance(d, ast.Constant) else ast.Constant(...) for d in arguments.defaults]
    arguments.defaults[:] = keep
    returns = ast.unparse(function.returns) if function.returns else "Any"
    text = ast.get_docstring(function) or ""
    doc = "\n".join(f"    {line}".rstrip() for line in f'"""{text}\n"""'.splitlines())
    return f"def {name}({ast.unparse(arguments)}) -> {returns}:\n{doc}\n"


def stub(module: str, place: str) -> str:
    """The text of a stub: for `module`, what there is in `place`."""
    if place in PACKAGES and place != module:
        lines, names = {f"from {place} import *"}, list[str]()
    else:
        through = [each for each in stars(place) if place.startswith("horovod._")]
        lines = {f"from {each} import *" for each in through}
        names = [n for n in exported(place) if n in bindings(place) or not through]
    functions = []
    for name in names:
        if function := partial(place, name):
            functions.append(function)
        else:
            where, real = origin(place, name)
            if real == name:
                lines.add(f"from {where} import {name} as {name}")
            else:  # `import a as b` makes b no name of a stub's module
                lines.add(f"from {where} import {real}")
                functions.append(f"{name} = {real}\n")
    if any(each.startswith("def ") for each in functions):
        lines.add("from typing import Any")
    return HEADING + "\n".join([*sorted(lines), *ADDED.get(module, []), *functions]).rstrip() + "\n"


def stubs() -> Iterator[tuple[Path, str]]:
    """Every stub, as its file and its text."""
    for module in PACKAGES:
        yield ROOT.joinpath(*module.split("."), "__init__.pyi"), stub(module, module)
    yield ROOT / "horovod" / "__init__.pyi", HEADING + ROOT_STUB
    for module, place in SERVED.items():
        base = ROOT.joinpath(*module.split("."))
        is_package = any(other.startswith(f"{module}.") for other in SERVED)
        path = base / "__init__.pyi" if is_package else base.with_suffix(".pyi")
        yield path, stub(module, place)


def main(check: bool) -> None:
    """Write the stubs, or exit with the names of those that are not as they should be."""
    wanted = dict(stubs())
    there = {path for each in OURS for path in (ROOT / each).rglob("*.pyi")}
    wrong = {p for p, text in wanted.items() if not p.exists() or p.read_text() != text}
    wrong |= there - wanted.keys()
    if check and wrong:
        names = ", ".join(sorted(str(path.relative_to(ROOT)) for path in wrong))
        sys.exit(f"python tools/stubs.py would write these anew: {names}")
    if not check:
        for path in there - wanted.keys():
            path.unlink()
        for path in wrong & wanted.keys():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path])
    print(f"{len(wanted)} stubs, {len(wrong)} {'wrong' if check else 'written'}")


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
