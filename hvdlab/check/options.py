"""The options of a script, by whatever library it reads them, and their names elsewhere."""

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

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# What other people call the options of the course's scripts.
ALIASES = {
    "--base-lr": ("--base-lr", "--lr", "--learning-rate"),
    "--epochs": ("--epochs", "--num-epochs", "--n-epochs", "--max-epochs"),
    "--batch-size": ("--batch-size", "--batch", "--bs"),
    "--log-dir": (
        "--log-dir",
        "--logdir",
        "--out",
        "--output",
        "--out-dir",
        "--output-dir",
        "--save-dir",
        "--run-dir",
        "--folder",
        "--checkpoint-dir",
        "--checkpoint",
        "--save",
    ),
    "--log-file": ("--log-file", "--csv", "--csv-file"),
    "--limit": ("--limit", "--images", "--num-images", "--max-images", "--samples", "--subset"),
    "--resume": ("--resume", "--continue", "--restart"),
    "--warmup-epochs": ("--warmup-epochs", "--warm-up-epochs"),
}
FILES = ("--checkpoint", "--save")  # not folders
LARGEST = 1 << 16  # bytes of an option file
MOST = 1000  # of its keys: one that refers to itself has no end
_MADE = re.compile(r"""["']--["']\s*\+|f["']--\{""")  # of the fields of a class
_WORDS = re.compile(r"""(?:split|partition)\(\s*["']=["']|\b(?:omegaconf|hydra)\b""")


def options_of(text: str) -> set[str]:
    """The options, such as "--epochs", that a script names, or makes of names or of fields."""
    made: set[str] = set()
    if _MADE.search(text):
        made = {_dashed(field) for field in _fields(text)}
        known = {alias for aliases in ALIASES.values() for alias in aliases}
        made |= known & {f"--{name}" for name in re.findall(r"""["']([\w-]+)["']""", text)}
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
    return tomllib.loads(text) if file.suffix == ".toml" else yaml.safe_load(text)  # or JSON


def _keys(tree: Any, above: str = "") -> Iterator[str]:
    """The keys; those of a mapping below its own, as in `optimizer.lr`."""
    for name, value in tree.items() if isinstance(tree, dict) else ():
        yield f"{above}{name}"
        yield from _keys(value, f"{above}{name}.")


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


def _dashed(option: str) -> str:
    """The option with dashes, as in ALIASES, that a word stands for."""
    if option.startswith("--"):
        return option
    return "--" + option.rpartition(".")[2].replace("_", "-")


def arguments_for(phases: list[list[str]], options: set[str]) -> list[list[str]]:
    """The arguments of each run, as far as the script takes them, under its own names."""

    def own(argument: str) -> list[str]:
        name, _, value = argument.partition("=")
        known = ALIASES.get(name, (name,))
        names = sorted(
            (known.index(_dashed(each)), each) for each in options if _dashed(each) in known
        )
        if not names:
            return []
        option = names[0][1]
        if _dashed(option) in FILES:
            value += "/checkpoint"
        if value or not option.startswith("--"):
            option += f"={value or 'true'}"
        return [option]

    return [[each for argument in phase for each in own(argument)] for phase in phases]


def has(options: set[str], *names: str) -> bool:
    """Whether there is one of these, whatever it is called."""
    known = {alias for name in names for alias in ALIASES.get(name, (name,))}
    return any(_dashed(each) in known for each in options)


def given(arguments: Sequence[str], name: str) -> str | None:
    """What a run was given for an option, whatever it is called; None if nothing."""
    pairs = [each.partition("=") for each in arguments]
    return next((v for each, _, v in reversed(pairs) if _dashed(each) in ALIASES[name]), None)
