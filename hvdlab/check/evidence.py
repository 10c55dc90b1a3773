"""A recording, put in order: phases, epochs and steps of each rank."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .aliases import given
from .course import Script
from .inferred import infer_rates, step_between, without_weights
from .run import Recording

Event = dict[str, Any]
Finding = tuple[str, str]  # the result of a step, and what was seen
NO_INIT = "NotInitializedError"  # how an error begins where init() was not called
SKETCH = 3  # numbers in a sketch of gradients
SMALL = 64  # elements: a metric and no gradient


@dataclass
class Step:
    """One step of the optimizer."""

    lr: float  # 0 where it is not known; see Case.of
    grads: str
    before: str
    after: str
    elements: int
    ids: list[int | str] = field(default_factory=list)
    loss: float | None = None  # the mean of its backward passes
    batches: int = 0
    reduced: int = 0  # elements that went through an allreduce for it
    expected: float | None = None  # the mean cross entropy of what the model said in them
    own: list[float] | None = None  # a sketch of this rank's gradients before they were reduced
    sent: list[float] | None = None  # of what it gave to allreduces, where the script makes them
    used: list[float] | None = None  # and of those that the step used
    without: int = 0  # parameters that got no gradient
    rates: list[float] = field(default_factory=list)  # of each group of parameters
    untrained: str = ""  # a digest of the model's parameters that the optimizer has not
    again: bool = False  # without another backward pass, as of a second optimizer
    moved: list[float] | None = None  # a sketch of the change, where no optimizer told of the step

    def is_as(self, other: Step) -> bool:
        """Whether two ranks used the same gradients for it."""
        if self.moved is None or other.moved is None:
            return self.grads == other.grads
        apart = np.linalg.norm(np.subtract(self.moved, other.moved))
        return bool(apart <= 0.02 * np.linalg.norm(self.moved))


@dataclass
class Epoch:
    """The steps between two validations, and what the validation gave."""

    steps: list[Step] = field(default_factory=list)
    right: int = 0
    seen: int = 0
    tested: list[int | str] = field(default_factory=list)

    @property
    def ids(self) -> list[int | str]:
        """The training images in the order in which they were read."""
        return [number for step in self.steps for number in step.ids]

    @property
    def loss(self) -> float | None:
        """The mean over the steps."""
        return _mean([step.loss for step in self.steps if step.loss is not None])

    @property
    def whole_loss(self) -> float | None:
        """The mean cross entropy over the steps, whatever part of it went backward."""
        return _mean([step.expected for step in self.steps if step.expected is not None])

    @property
    def loss_of_images(self) -> float | None:
        """The mean over the images, where the last step has fewer."""
        known = [(step.loss, len(step.ids)) for step in self.steps if step.loss is not None]
        images = sum(count for _, count in known)
        return sum(loss * count for loss, count in known) / images if images else None

    @property
    def accuracy(self) -> float | None:
        """The share of test images that this rank's model names correctly."""
        return self.right / self.seen if self.seen else None


@dataclass
class Phase:
    """One run of the script on one rank."""

    epochs: list[Epoch] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    calls: list[Event] = field(default_factory=list)  # collectives and when
    pending: list[int | str] = field(default_factory=list)  # images without a step, at the end
    error: str | None = None
    where: str = ""
    called: list[str] = field(default_factory=list)  # the functions in which the error was raised
    ended: bool = False
    buffers: str = ""  # a digest of the model's, such as running means, before its first batch

    def option(self, name: str) -> str | None:
        """What the run was given for an option, whatever it is called."""
        return given(self.arguments, name)

    @property
    def steps(self) -> list[Step]:
        """All steps, of all epochs."""
        return [step for epoch in self.epochs for step in epoch.steps]


@dataclass
class Rank:
    """All that was seen of one rank."""

    phases: list[Phase] = field(default_factory=list)
    inits: list[Event] = field(default_factory=list)
    gpus: list[Event] = field(default_factory=list)
    threads: list[Event] = field(default_factory=list)
    outside: list[Event] = field(default_factory=list)
    network: list[Event] = field(default_factory=list)
    fits: list[Event] = field(default_factory=list)
    logged: list[Event] = field(default_factory=list)  # by the script, on stderr
    asked: list[Event] = field(default_factory=list)  # of the runtime, for rank() and size()
    decisions: list[Event] = field(default_factory=list)  # of callbacks, by what metric
    here: list[Event] = field(default_factory=list)  # where it was when the run was stopped
    images: int = 0  # in the training set
    finished: bool = False  # it came to the end of all phases

    def phase(self, number: int) -> Phase:
        """A phase, empty where the rank did not come to it."""
        return self.phases[number] if number < len(self.phases) else Phase()


@dataclass(frozen=True)
class Case:
    """What is judged: of which script it is a version, the recording, and its ranks in order.

    `alone` is what the only rank of a run on one did, `without_gpus` what ranks did that share a
    host without any; they may have done nothing.
    """

    script: Script
    recording: Recording
    ranks: list[Rank]
    alone: Rank
    without_gpus: list[Rank]

    @classmethod
    def of(cls, script: Script, recording: Recording) -> Case:
        """The case of a recording."""
        without = [_read_rank(events) for events in recording.without_gpus]
        case = cls(script, recording, read(recording), _read_rank(recording.alone), without)
        for number in (0, 1):
            infer_rates(case.pairs(number))
            infer_rates([(step,) for step in case.alone.phase(number).steps])
        return case

    def base_lr(self, number: int) -> float | None:
        """The largest rate of one process in a run; None if it is not known."""
        if any(rates := [step.lr for step in self.alone.phase(number).steps]):
            return max(rates)
        return self.script.base_lr(self.ranks[0].phase(number).arguments)

    def phases(self, number: int) -> list[Phase]:
        """A run of the script on each rank."""
        return [rank.phase(number) for rank in self.ranks]

    def steps(self, number: int) -> list[list[Step]]:
        """The steps of a run on each rank. Raises Unseen if a rank took none."""
        steps = [phase.steps for phase in self.phases(number)]
        if not all(steps):
            if all(phase.ended and not phase.error for phase in self.phases(number)):
                raise Unseen("no optimizer of the framework took a step on each rank")
            raise Unseen("the run ended before the first step")
        return steps

    def pairs(self, number: int) -> list[tuple[Step, ...]]:
        """The steps of a run that all ranks took, those of all ranks together."""
        return list(zip(*(phase.steps for phase in self.phases(number)), strict=False))


class Unseen(Exception):
    """The run ended before a step could be judged, or it can't be judged; the text says why."""


def tell_both(texts: list[str]) -> str:
    """One text for each rank as one sentence."""
    if len(set(texts)) == 1:
        return f"each rank {texts[0]}"
    return "; ".join(f"rank {rank} {text}" for rank, text in enumerate(texts))


def read(recording: Recording) -> list[Rank]:
    """The ranks of a recording."""
    return [_read_rank(events) for events in recording.events]


def _read_rank(events: list[Event]) -> Rank:
    rank = Rank()
    events = without_weights(events)
    ids: list[int | str] = []
    unplaced: list[int | str] = []  # read by the script, and given to no model that we know of
    losses: list[float] = []
    expected: list[float] = []
    batches, reduced, tests, sent = 0, 0, False, None
    weights: Event | None = None  # as they were last told, where no optimizer tells of steps
    lists = {"init": rank.inits, "gpu": rank.gpus, "threads": rank.threads, "fit": rank.fits,
             "outside": rank.outside, "network": rank.network, "asked": rank.asked,
             "logged": rank.logged, "here": rank.here,
             "decision": rank.decisions}  # fmt: skip
    for event in events:
        kind = event["event"]
        if kind in lists:
            lists[kind].append({**event, "phase": len(rank.phases)})
        elif kind == "phase":
            rank.phases.append(Phase())
            ids, losses, expected, batches, reduced, tests = [], [], [], 0, 0, False
            sent, weights = None, None
            rank.phases[-1].arguments = list(event.get("arguments", []))
        elif kind == "finished":
            rank.finished = True
        elif kind == "data":
            rank.images = event["train"]
        if not rank.phases:
            continue
        phase = rank.phases[-1]
        if kind == "weights":
            before, weights = weights, event
            if not (ids or unplaced) or before is None or before["digest"] == event["digest"]:
                continue
            kind, event = "step", step_between(before, event)
        if kind == "batch" and _is_inside(event["ids"], ids):
            continue
        if kind == "batch":
            unplaced = []
        if kind == "batch" and event["train"]:
            ids, batches = ids + event["ids"], batches + 1
            if tests or not phase.epochs:
                phase.epochs.append(Epoch())
                tests = False
        elif kind == "batch" and phase.epochs:
            tests = True
            phase.epochs[-1].tested += event["ids"]
        elif kind == "read" and any(map(_is_of_tests, event["ids"])):
            tests = bool(phase.epochs)
        elif kind == "read":
            unplaced += event["ids"]
        elif kind == "right" and phase.epochs:
            phase.epochs[-1].right += event["count"]
            phase.epochs[-1].seen += event["of"]
        elif kind in ("loss", "expected") and event["value"] is not None:
            (losses if kind == "loss" else expected).append(event["value"])
        elif kind == "collective":
            now = {"epoch": len(phase.epochs) + tests, "steps": len(phase.steps)}
            now["begun"] = len(phase.epochs)
            now["training"] = bool(ids)  # between a batch and its step
            phase.calls.append({**event, **now})
            if event["kind"] == "broadcast":
                weights = None  # they change by it, and not by a step
            if event["kind"] == "allreduce":
                reduced += event["elements"]
            if "sketch" in event and ids:  # between a batch and its step
                sent = [a + b for a, b in zip(sent or [0.0] * SKETCH, event["sketch"], strict=True)]
        elif kind == "step":
            ids, unplaced = ids or unplaced, []
            if not phase.epochs or (tests and ids):
                phase.epochs.append(Epoch())
                tests = False
            fields = {name: event[name] for name in ("lr", "grads", "before", "after", "elements")}
            fields |= {
                name: event[name]
                for name in ("own", "used", "without", "untrained", "rates", "moved")
                if name in event
            }
            fields |= {"ids": ids, "loss": _mean(losses), "expected": _mean(expected)}
            fields |= {"batches": batches, "reduced": reduced, "sent": sent}
            fields["again"] = bool(phase.steps) and not ids and not losses
            phase.epochs[-1].steps.append(Step(**fields))
            ids, losses, expected, batches, reduced, sent = [], [], [], 0, 0, None
        elif kind == "option" and event["argument"] not in phase.arguments:
            phase.arguments.append(event["argument"])  # from its environment
        elif kind == "buffers":
            phase.buffers = event["digest"]
        elif kind == "end":
            phase.error, phase.where = _in_short(event["error"]), event.get("where", "")
            phase.ended = True
            phase.called, phase.pending = event.get("called", []), ids
    return rank


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _in_short(error: str | None) -> str | None:
    """One line of an error; the runtime's own where a framework has put its words around it."""
    found = re.search(r"HorovodInternalError: .*", error or "")
    return found[0] if found else error and " ".join(error.split())


def _is_inside(new: list[int | str], ids: list[int | str]) -> bool:
    """Whether a part of a model got what another part has made of the images."""
    return any(map(is_known, ids)) and not any(map(is_known, new))


def is_known(number: int | str) -> bool:
    """Whether it is an image of one of the sets, and no hash."""
    return isinstance(number, int) or _is_of_tests(number)


def _is_of_tests(number: int | str) -> bool:
    return isinstance(number, str) and number.startswith("t")


def parted(phase: Phase) -> list[list[int | str]]:
    """The images of each epoch; where no validation parts the epochs, a repeat begins a new one."""
    if len(phase.epochs) > 1:
        return [epoch.ids for epoch in phase.epochs]
    epochs: list[list[int | str]] = [[]]
    seen: set[int | str] = set()
    for number in (number for step in phase.steps for number in step.ids):
        if number in seen:
            epochs.append([])
            seen.clear()
        seen.add(number)
        epochs[-1].append(number)
    return epochs
