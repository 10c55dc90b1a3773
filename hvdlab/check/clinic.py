"""The clinic: which steps of the conversion a script from outside of the course has.

It is run as far as it can be run; MNIST and Fashion-MNIST from keras.datasets and torchvision are
the check's own small slice. Only what could not be seen is read from the source, and is marked so.
"""

from __future__ import annotations

import ast
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.text import Text

from .course import STEP, CheckError, Script
from .judge import judge
from .run import observe
from .show import show
from .verdict import OPEN, UNSEEN, StepVerdict, Verdict

STEPS = 8  # of an epoch

# Names in the source that belong to a step; a hint only, where a run was impossible.
_NAMES = {
    "init": {"init"},
    "device": {"local_rank"},
    "rate": {"size", "times size()"},
    "optimizer": {"DistributedOptimizer", "DistributedGradientTape"},
    "broadcast": {
        "broadcast_parameters", "broadcast_variables", "BroadcastGlobalVariablesCallback",
        "BroadcastGlobalVariablesHook", "broadcast_global_variables",
    },
    "shard": {
        "DistributedSampler", "shard", "num_replicas", "divided by size()", "sliced by rank()",
    },
    "rank0": {"rank"},
    "resume": {"broadcast_object"},
    "metrics": {"allreduce", "MetricAverageCallback", "allgather"},
    "schedule": {"LearningRateWarmupCallback", "LearningRateScheduleCallback"},
    "threads": {"set_num_threads", "set_intra_op_parallelism_threads"},
}  # fmt: skip


@dataclass
class Advice:
    """What is known of a script: the verdict of its run, and which steps are from reading only."""

    verdict: Verdict
    read_only: list[str] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether every step was seen, and is done."""
        return self.verdict.done

    def to_json(self) -> str:
        """For programs."""
        return json.dumps(asdict(self), indent=2)

    def show(self) -> None:
        """Print it."""
        console = Console()
        show(self.verdict, console)
        if self.read_only:
            console.print(Text("Read from the source only: " + ", ".join(self.read_only), "dim"))


def advise(path: Path, limit: float = 120.0) -> Advice:
    """Run a script without arguments on two ranks and say which steps it has, lacks, has wrong.

    Raises CheckError if it can't be read or is no Python.
    """
    try:
        tree = ast.parse(path.read_text())
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as error:
        raise CheckError(f"{path}: {error}") from None
    options = _options(tree)
    asked = {name: value for name, value in _ASKED.items() if name in options}
    script = Script("", path.name, "", "", ("resume",), outside=True)
    arguments = [f"{name}={value}" for name, value in asked.items()]
    verdict = judge(script, path.name, observe(path, [arguments], limit, STEPS))
    advice = Advice(verdict)
    names = _names(tree)
    for number, step in enumerate(verdict.steps):
        if step.result != UNSEEN and not _may_share(step, names):
            continue
        found = sorted(names & _NAMES[step.key])
        seen = f"{step.seen}; in the source: {', '.join(found) or 'nothing of it'}"
        result = UNSEEN if found else OPEN
        verdict.steps[number] = StepVerdict.of_step(STEP[step.key], result, seen)
        advice.read_only.append(step.key)
    return advice


_ASKED = {"--epochs": 2, "--num-epochs": 2, "--batch-size": 16, "--lr": 0.01, "--base-lr": 0.01}


def _may_share(step: StepVerdict, names: set[str]) -> bool:
    """Whether ranks that read all images may do so in fewer epochs, which no run can tell."""
    return step.key == "shard" and step.result == OPEN and "divided by size()" in names


def _options(tree: ast.AST) -> set[str]:
    """The options that a script takes, with a value."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            flags = {word.value for word in node.args if isinstance(word, ast.Constant)}
            takes = not any(word.arg == "action" for word in node.keywords)
            found |= flags if takes else set()
    return found


def _names(tree: ast.AST) -> set[str]:
    """All names in a source, and what is done with size()."""
    found = {
        getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "arg", "") or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name | ast.keyword)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Slice) and any(map(_is_rank, ast.walk(node))):
            found.add("sliced by rank()")
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Mult) and (_is_size(node.left) or _is_size(node.right)):
                found.add("times size()")
            divides = isinstance(node.op, ast.Div | ast.FloorDiv)
            if divides and any(map(_is_size, ast.walk(node.right))):
                found.add("divided by size()")
    return found


def _is_rank(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "rank"


def _is_size(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "size"
