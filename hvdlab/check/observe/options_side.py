"""Tells the student's code the course's options where it asks for them: parsers, and variables."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from typing import Any

from ..aliases import FILES, canonical, dashed, option_of
from .recorder import Recorder


class Options:
    """The options of each run of the script, which may have other names for them.

    Args:
        phases: of each run, such as "--epochs=2".
        home: the folder that stands for {home} in them.
    """

    def __init__(self, record: Recorder, phases: list[list[str]], home: str):
        self._record, self._phases, self._home = record, phases, home

    def value(self, option: str, name: str) -> str | None:
        """What this run is told for an option that the script calls so; empty for a flag, None if
        it is told nothing."""
        for argument in self._phases[self._record.phase - 1]:
            told, _, value = argument.partition("=")
            if told == option:
                self._record("option", argument=argument)
                return value.replace("{home}", self._home) + "/checkpoint" * (name in FILES)
        return None

    def missing(self, arguments: list[str], flags: dict[str, bool]) -> list[str]:
        """Those that a parser knows and that are not among its arguments.

        flags: of each name of the parser's, such as "--lr", whether it takes no value.
        """
        phase = self._phases[self._record.phase - 1]
        told = {each.partition("=")[0]: "=" not in each for each in phase}
        there = {option_of(each.partition("=")[0]) for each in arguments}
        found = []
        for name, is_flag in flags.items():
            option = option_of(name)
            if told.get(option) is is_flag and option not in there:
                there.add(option)
                value = self.value(option, dashed(name))
                found.append(f"{name}={value}" if value else name)
        return found


def watch_argparse(options: Options) -> None:
    """Add options to the arguments that argparse, or what is built on it, is to read."""
    parse = argparse.ArgumentParser.parse_known_args

    @functools.wraps(parse)
    def watched(self: Any, args: Any = None, *rest: Any, **kwargs: Any) -> Any:
        given = sys.argv[1:] if args is None else list(args)
        if set(given) <= set(sys.argv):
            flags = {name: each.nargs == 0 for name, each in self._option_string_actions.items()}
            given = [*options.missing(given, flags), *given]  # before a command
        return parse(self, given, *rest, **kwargs)

    argparse.ArgumentParser.parse_known_args = watched


def watch_click(options: Options) -> None:
    """The same for click, on which typer is built."""
    import click

    parse = click.Command.parse_args

    @functools.wraps(parse)
    def watched(self: Any, context: Any, args: list[str]) -> Any:
        parameters = [each for each in self.get_params(context) if isinstance(each, click.Option)]
        flags = {name: each.is_flag for each in parameters for name in each.opts}
        return parse(self, context, [*options.missing(args, flags), *args])

    click.Command.parse_args = watched


def watch_absl(options: Options) -> None:
    """The same for absl."""
    from absl.flags import FlagValues

    parse = FlagValues.__call__

    @functools.wraps(parse)
    def watched(self: Any, argv: Any, known_only: bool = False) -> list[str]:
        program, *given = argv
        own = [n for n in self if not self.find_module_defining_flag(n, "").startswith("absl.")]
        flags = {f"--{name}": self[name].boolean for name in own}
        return parse(self, [program, *options.missing(given, flags), *given], known_only)

    FlagValues.__call__ = watched


class _Yes(str):
    """The value of a variable that is on, in whatever word the script expects."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str(other).lower() in ("1", "yes", "y", "true", "on")

    def __ne__(self, other: object) -> bool:
        return not self == other

    def lower(self, *_: object) -> str:
        """Itself: it may be compared afterwards."""
        return self

    strip = upper = lower


def watch_environment(record: Recorder, options: Options) -> None:
    """Answer the student's code where it asks the environment for an option of the course's.

    Whatever makes the variable's name, it is known when it is asked for. What is answered is set
    from then on; what the script has set itself is left to it.
    """
    get = type(os.environ).__getitem__
    passed = {each.__code__.co_filename for each in (os.getenv, type(os.environ).get)}

    flags: set[str] = set()

    def told(key: str) -> str | None:
        found = canonical(key)
        return options.value(*found) if found else None

    @functools.wraps(get)
    def watched(self: Any, key: Any) -> Any:
        frame = sys._getframe(1)
        while frame.f_back and frame.f_code.co_filename in passed:
            frame = frame.f_back
        asks = isinstance(key, str) and frame.f_code.co_filename.startswith(record.folder)
        try:
            value = get(self, key)
        except KeyError:
            if not asks or (answer := told(key)) is None:
                raise
            self[key] = value = answer or "1"
            if not answer:
                flags.add(key)
        return _Yes(value) if asks and key in flags and value == "1" else value

    type(os.environ).__getitem__ = watched
