"""What is checked in which script: the labs, their scripts, the conversion's steps."""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass, replace
from pathlib import Path

from ..handout import source
from .aliases import given
from .options import options_of, words_of

BASE_LR = 0.01  # what the first run is given; the second one has the script's own
BATCH = 16  # images a step, for each process
TRAIN, TEST = 256, 100  # images of the slice
LIMIT = [f"--limit={TEST}"]  # for scripts that count on as many test images as training images
OPTION_FILES = (".yaml", ".yml", ".json", ".toml")
VERSION = 0.3  # how like the course's script a version of it is, at least
SCRIPTS = source() / "scripts"


@dataclass(frozen=True)
class Step:
    """One step of the conversion: why it matters, and where to look for it."""

    number: int
    key: str
    title: str
    points: int
    why: str
    look: str


STEPS = [
    Step(1, "init", "import and init", 1,
         "Without it each process trains alone and knows nothing of the others.",
         "the first lines of main(); README, 'Your first conversion'"),
    Step(2, "device", "one GPU for each process of a host", 1,
         "Two processes on one GPU share its time and its memory; on the next host the count "
         "begins anew.",
         "the part 'Device' of the script; what is a process's number on its own host?"),
    Step(3, "rate", "learning rate times size", 1,
         "A step averages over N times as many images, and there are N times fewer of them.",
         "where the optimizer gets its rate, and where the rate is changed later"),
    Step(4, "optimizer", "gradients averaged", 2,
         "Ranks that step with gradients of their own train N different models.",
         "which gradients does the step use, and who averaged them?"),
    Step(5, "broadcast", "same state everywhere", 2,
         "Averaged gradients keep equal models equal; they don't make different ones equal.",
         "whose weights and optimizer state does each rank start with, also after a resume?"),
    Step(6, "shard", "each rank its own part of the data", 2,
         "Ranks that read the same images do the same work N times.",
         "how many images are in an epoch of each rank, and which; what changes with the epoch?"),
    Step(7, "rank0", "rank 0 alone prints and writes", 1,
         "N processes that write one file destroy it, and N copies of a line tell nothing new.",
         "every print, log and checkpoint: who comes there?"),
    Step(8, "resume", "resume epoch from rank 0", 1,
         "Only rank 0 is sure to have the checkpoint. Ranks that start at different epochs wait "
         "for each other for ever.",
         "who looks for the checkpoint, and how do the others learn what was found?"),
    Step(9, "metrics", "metrics averaged", 1,
         "Each rank has seen a part only; its loss and accuracy are those of that part.",
         "the numbers that are reported: over which images are they the mean?"),
    Step(10, "schedule", "warm-up and schedule", 1,
         "N times the rate from the first step on makes many trainings diverge.",
         "the rate in the first epoch, at its end, and after that"),
    Step(11, "threads", "threads for each process", 1,
         "N processes that each use all cores stand in each other's way.",
         "how many threads does each process use, and how many cores are there?"),
]  # fmt: skip
STEP = {step.key: step for step in STEPS}


@dataclass(frozen=True)
class Script:
    """A script of the course. `decays`: after 60 % and 85 % of the epochs, ten times each."""

    lab: str
    name: str
    framework: str
    data: str
    lacks: tuple[str, ...] = ()
    decays: bool = False
    own_lr: float | None = None  # of the program for one process, where none is given
    names_rate: bool = True  # whether the student's version has an option for it
    outside: bool = False  # not of the course
    is_version: bool = True  # whether it has grown from the course's, whose schedule it then keeps

    @property
    def steps(self) -> list[Step]:
        """The steps that this script needs."""
        return [step for step in STEPS if step.key not in self.lacks]

    @property
    def original(self) -> Path:
        """The program for one process."""
        return SCRIPTS / self.name

    @property
    def solution(self) -> Path:
        """The converted program."""
        return SCRIPTS / "solutions" / self.name

    def without(self, key: str) -> Script:
        """The same script, which need not have this step."""
        return replace(self, lacks=tuple(dict.fromkeys((*self.lacks, key))))

    def phases(self) -> list[list[str]]:
        """The arguments of each run: two epochs, then one more, if it can be from the checkpoint.

        The second run takes the rate that the script has by itself.
        """
        if self.outside:
            return [["--epochs=2", f"--base-lr={BASE_LR}", f"--batch-size={BATCH}"]]
        options = [f"--batch-size={BATCH}", "--val-batch-size=25", "--seed=42"]
        first = ["--epochs=2", f"--base-lr={BASE_LR}", "--log-dir={home}/logs"]
        again = ["--epochs=3", "--resume", "--log-dir={home}/logs"]
        if "resume" in self.lacks:
            again = ["--epochs=1", "--log-dir={home}/more"]
        if not self.is_version:
            options += ["--warmup-epochs=1", "--log-file={home}/logs/log.csv"]
        return [[*first, *options], [*again, *options]]

    def base_lr(self, arguments: list[str]) -> float | None:
        """The rate of one process in a run with these arguments; None if it is not known."""
        rate = given(arguments, "--base-lr")
        return self.own_lr if rate is None else float(rate)


ALL = [
    Script("05", "fashion_mnist_keras.py", "keras", "fashion-mnist", decays=True, own_lr=0.02),
    Script("05", "mnist_keras.py", "keras", "mnist", lacks=("resume",), own_lr=0.001),
    Script("06", "fashion_mnist_torch.py", "torch", "fashion-mnist", decays=True, own_lr=0.02),
    Script("06", "mnist_torch.py", "torch", "mnist", lacks=("resume", "schedule"), own_lr=0.001),
    Script("07", "mnist_tensorflow.py", "tensorflow", "mnist", own_lr=0.001),
    Script("07", "mnist_tensorflow1.py", "tensorflow1", "mnist", own_lr=0.001),
    # Its strategy chooses the device and the number of threads, and each rank reads the checkpoint.
    Script("06", "fashion_mnist_lightning.py", "torch", "fashion-mnist",
           lacks=("device", "resume", "threads"), decays=True, own_lr=0.02),
]  # fmt: skip
LABS = sorted({script.lab for script in ALL})
# What a student converts in a lab's notebook.
BEGUN = {"05": "work/my_keras.py", "06": "work/my_torch.py", "07": "work/my_tensorflow.py"}


class CheckError(RuntimeError):
    """A script can't be checked; the text says why."""


def python_of(path: Path) -> str:
    """The text of a file. Raises CheckError if it can't be read or is no Python."""
    try:
        text = path.read_text("utf-8-sig")
        ast.parse(text)
    except (OSError, UnicodeDecodeError) as error:
        raise CheckError(f"{path}: {error}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise CheckError(
            f"{path.name} is no valid Python: {getattr(error, 'msg', str(error)) or 'too deep'}"
            + (f" in line {line}" if line else "")
        ) from None
    return text


def source_of(path: Path) -> tuple[str, list[Path]]:
    """The text of a script and of modules beside it that it imports; the option files it names."""
    texts: dict[Path, str] = {}
    left = [path]
    while left:
        module = left.pop()
        texts[module] = python_of(module)
        for node in ast.walk(ast.parse(texts[module])):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            beside = (path.parent / f"{name.replace('.', '/')}.py" for name in names)
            left += [each for each in beside if each.is_file() and each not in (*texts, *left)]
    found = "\n".join(texts.values())
    return found, [
        each for each in sorted(path.parent.iterdir())
        if each.suffix in OPTION_FILES and each.name in found
    ]  # fmt: skip


def options_named(path: Path) -> set[str]:
    """The options of a script, with dashes or as words, and of the modules that it imports."""
    text, files = source_of(path)
    return options_of(text) | words_of(text, files)


def outside(path: Path) -> Script:
    """A script that is not of the course."""
    return Script("", path.name, "", "", lacks=("resume",), outside=True, is_version=False)


def script_of(lab: str, path: Path) -> Script:
    """Which of the lab's scripts a student's file is a version of: the one most like it, or for one
    that is like none, the one with the same data.

    Raises CheckError for a lab without checks, or for a file that is no Python.
    """
    known = [script for script in ALL if script.lab == lab.zfill(2)]
    if not known:
        raise CheckError(f"lab {lab} has no checks; there are {', '.join(LABS)}")
    text = python_of(path)

    def likeness(script: Script) -> float:
        other = script.original.read_text().splitlines()
        return difflib.SequenceMatcher(None, text.splitlines(), other, autojunk=False).ratio()

    code, files = source_of(path)
    told = "\n".join([code, *(each.read_text(errors="replace") for each in files)])
    of_set = "fashion-mnist" if "fashion" in told.lower() else "mnist"
    of_graphs = "compat.v1" in code or "Session" in code

    def fits(script: Script) -> int:
        return (script.data == of_set) + ((script.framework == "tensorflow1") == of_graphs)

    # Two scripts of a lab are like each other, too: the data decide where it is hard to say.
    best = max(known, key=lambda script: likeness(script) + 0.1 * fits(script))
    if likeness(best) > VERSION:
        return best
    return replace(max(known, key=fits), is_version=False)


def find(lab: str) -> Path:
    """The student's file where none is named: what the lab's notebook has begun, in its own folder
    or from any folder of the course, or else the lab's first script in this folder.

    Raises CheckError if there is none.
    """
    number = lab.zfill(2)
    names = [script.name for script in ALL if script.lab == number]
    if not names:
        raise CheckError(f"lab {lab} has no checks; there are {', '.join(LABS)}")
    here, begun = Path.cwd(), BEGUN[number]
    for folder in (here, *here.parents):
        places = [folder / begun, *sorted(folder.glob(f"labs/{number}_*/{begun}"))]
        for place in places:
            if place.exists():
                return place
    for name in names:
        for place in (Path(name), Path("scripts") / name):
            if place.exists():
                return place
    raise CheckError(
        f"neither {begun} nor {' or '.join(names)} here; name your script: hvdlab check {lab} FILE"
    )
