"""What a script calls the course's options, on its command line or in its environment."""

from __future__ import annotations

from collections.abc import Sequence

# What other people call the options of the course's scripts.
ALIASES = {
    "--base-lr": ("--base-lr", "--lr", "--learning-rate"),
    "--epochs": ("--epochs", "--num-epochs", "--n-epochs", "--max-epochs", "--passes"),
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
OVERRIDES = ("--set", "--override", "--overrides", "--opt", "--option")  # before words as `lr=0.1`
# Before the name of an option in that of another one, as in MIN_LR.
_QUALIFIERS = {
    "best", "decay", "disable", "drop", "end", "eval", "final", "freeze", "global", "last", "log",
    "max", "micro", "min", "no", "patience", "peak", "save", "skip", "start", "step", "test",
    "val", "valid", "warm", "warmup",
}  # fmt: skip


def dashed(option: str) -> str:
    """The option with dashes, as in ALIASES, that a word such as data.batch_size stands for."""
    return "--" + option.removeprefix("--").rpartition(".")[2].replace("_", "-")


def option_of(name: str) -> str:
    """The course's option that an option stands for; itself where it is none of them."""
    known = (option for option, aliases in ALIASES.items() if dashed(name) in aliases)
    return next(known, dashed(name))


def canonical(variable: str) -> tuple[str, str] | None:
    """The option that a variable of the environment stands for, as LR or FM_LR, and which of its
    names that is; None for others."""
    name = f"--{variable.lower().replace('_', '-')}"
    fits = [
        (len(alias), option, alias)
        for option, aliases in ALIASES.items() for alias in aliases if name.endswith(alias[1:])
    ]  # fmt: skip
    if not fits:
        return None
    length, option, alias = max(fits)
    above = name[2 : 1 - length]
    return None if above in _QUALIFIERS or "-" in above else (option, alias)


def arguments_for(phases: list[list[str]], options: set[str]) -> list[list[str]]:
    """The arguments of each run, as far as the script takes them, under its own names."""
    before = [name for name in OVERRIDES if name in options][:1]

    def own(argument: str) -> list[str]:
        name, _, value = argument.partition("=")
        known = ALIASES.get(name, (name,))
        names = sorted(
            (known.index(dashed(each)), each) for each in options if dashed(each) in known
        )
        if not names:
            return []
        option = names[0][1]
        if dashed(option) in FILES:
            value += "/checkpoint"
        is_word = not option.startswith("--")
        if value or is_word:
            option += f"={value or 'true'}"
        return [*(before if is_word else []), option]

    return [[each for argument in phase for each in own(argument)] for phase in phases]


def has(options: set[str], *names: str) -> bool:
    """Whether there is one of these, whatever it is called."""
    known = {alias for name in names for alias in ALIASES.get(name, (name,))}
    return any(dashed(each) in known for each in options)


def given(arguments: Sequence[str], name: str) -> str | None:
    """What a run was given for an option, whatever it is called; None if nothing."""
    pairs = [each.partition("=") for each in arguments]
    return next((v for each, _, v in reversed(pairs) if dashed(each) in ALIASES[name]), None)
