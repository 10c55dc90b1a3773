"""The options that a script has, by whatever library it reads them."""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from .aliases import ALIASES, dashed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST = 1 << 13  # bytes of an option file
MOST, DEEPEST, LONGEST = 1000, 8, 100  # of its keys: one that refers to itself has no end
_PARSED = re.compile(r"""(?:prefix|startswith|strip)\(["']--?["']""")  # by the script itself
_WORDS = re.compile(r"""(?:split|partition)\(\s*["']=["']|\b(?:omegaconf|hydra)\b""")


def options_of(text: str) -> set[str]:
    """The options, such as "--epochs", that a script names, or reads by a parser of its own.

    Those that argparse or click read are found when they do; see observe/options_side.py.
    """
    made: set[str] = set()
    if "argv" in text and "argparse" not in text and _PARSED.search(text):
        made = {dashed(field) for field in _fields(text)}
        known = {alias for aliases in ALIASES.values() for alias in aliases}
        names = re.findall(r"""["']([\w-]+)["']""", text)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and _name(node) == "dict":
                names += [each.arg for each in node.keywords if each.arg]
        made |= known & set(map(dashed, names))
    return made | set(re.findall(r"""["'](--[\w-]+)["']""", text))


def words_of(text: str, files: Sequence[Path]) -> set[str]:
    """The names that a script takes as words such as `data.limit=100`; none if it takes no words.

    They are the keys of its option files and the fields of its dataclasses.
    """
    if not _WORDS.search(text):
        return set()
    found = set(_fields(text))
    for file in files:
        with contextlib.suppress(OSError, ValueError, RecursionError, yaml.YAMLError):
            found.update(itertools.islice(_keys(_read(file)), MOST))
    return found


def _read(file: Path) -> Any:
    """What an option file holds; nothing of one that is too large to be one."""
    text = file.read_text(errors="replace") if file.stat().st_size <= LARGEST else ""
    if file.suffix == ".toml":
        return tomllib.loads(text)
    return yaml.load(text, yaml.BaseLoader)  # JSON, too; it makes nothing but texts


def _keys(tree: Any, *above: str) -> Iterator[str]:
    """The keys; those of a mapping below its own, as in `optimizer.lr`."""
    for name, value in tree.items() if isinstance(tree, dict) and len(above) < DEEPEST else ():
        if isinstance(name, str) and len(name) <= LONGEST:
            yield ".".join([*above, name])
            yield from _keys(value, *above, name)


def _fields(text: str) -> Iterator[str]:
    """The fields of dataclasses; those of one that is a field's type or default below its name."""
    classes: dict[str, list[ast.AnnAssign]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and "dataclass" in map(_name, node.decorator_list):
            classes[node.name] = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    inner = {_name(each.annotation) for fields in classes.values() for each in fields}

    def below(name: str, above: str) -> Iterator[str]:
        for each in classes[name]:
            field = f"{above}{_name(each.target)}"
            yield field
            if (kind := _name(each.annotation)) in classes and kind != name:
                yield from below(kind, f"{field}.")

    for name in classes.keys() - inner:
        yield from below(name, "")


def _name(node: ast.AST) -> str:
    """The last part of a name, as of a decorator that is called."""
    node = node.func if isinstance(node, ast.Call) else node
    return getattr(node, "id", getattr(node, "attr", ""))
