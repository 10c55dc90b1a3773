"""Random faults on real ranks, and what must come of each: no hang, no leftover, the culprit named.

`test_faults.py` runs a few with a fixed seed; `python tests/faults.py --count 300 --seed 1` as many
as you like. A fault is one rank doing something else than the others, in PyTorch, TensorFlow or
Keras, on two to four ranks. The first half here are those that processes survive: all ranks get an
error that names the culprit (or the right result), and `shutdown()` and `init()` help. The second
half are those by which a job ends: in seconds, with the culprit's exit code and its name last.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from mpi import KERAS, ROOT, TORCH, Ranks, environment

FRAMEWORKS = ("torch", "tensorflow", "keras")
# What the culprit does, whether the call still has its result, and its own error.
SURVIVED = {
    "shape": False, "dtype": False, "op": False, "root": False, "kind": False, "name": False,
    "order": False, "async order": True, "layer": False, "raise": False, "skip": False,
    "interrupt": False, "stop": True,
}  # fmt: skip
# What ends the job, and its exit code; the culprit's own words for it.
DEADLY = {
    "sys.exit(0)": 1, "sys.exit(7)": 7, "sys.exit('no data')": 1, "raise SystemExit(6)": 6,
    "os._exit(0)": 1, "os._exit(9)": 9, "raise KeyError('lost')": 1, "raise KeyboardInterrupt": 130,
    "os.kill(os.getpid(), signal.SIGKILL)": 137, "os.kill(os.getpid(), signal.SIGTERM)": 143,
    "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)": 130, "os.abort()": 134,
    "hvd.shutdown(); sys.exit(3)": 3,
}  # fmt: skip
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}
# Only where no process ends. On a busy machine one rank may be as late as that without any fault.
STALL = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "8", **QUIET}
LIMIT = 240  # seconds for one fault, where three ranks import TensorFlow on a busy machine
_MARK = "HVDLITE_FAULT"
_STEPS = 5


class Fault(NamedTuple):
    """One rank's doing, at a step of a small training or beside it."""

    framework: str
    np: int
    kind: str
    culprit: int
    step: int = 0

    def __str__(self) -> str:
        where = f"{self.framework}, {self.np} ranks, rank {self.culprit}, step {self.step}"
        return f"{where}: {self.kind}"


def faults(seed: int, kinds: dict[str, Any], np: int, count: int) -> list[Fault]:
    """Faults by chance, on `np` ranks."""
    chance, found = random.Random(f"{seed} {np}"), []
    for _ in range(count):
        framework, kind = chance.choice(FRAMEWORKS), chance.choice(list(kinds))
        if kind == "async order":
            framework = "torch"  # the others' calls wait
        found.append(Fault(framework, np, kind, chance.randrange(np), chance.randrange(1, 4)))
    return found


# On the ranks


def binding(framework: str) -> Any:
    """hvd, for a framework."""
    return __import__(f"hvdlite.{framework}", fromlist=["init"])


def tensor(framework: str, shape: tuple[int, ...], dtype: str = "float32") -> Any:
    """Ones."""
    if framework == "torch":
        import torch

        return torch.ones(shape, dtype=getattr(torch, dtype))
    import tensorflow as tf

    return tf.ones(shape, dtype)


def train(framework: str, before_step: Callable[[int], None], width: int = 16) -> None:
    """A small training, in which something is done before each step."""
    import numpy as np

    hvd = binding(framework)
    x, y = np.ones((4, 8), np.float32), np.ones((4, 1), np.float32)
    if framework == "torch":
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Linear(width, 1))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
        )
        for step in range(_STEPS):
            before_step(step)
            optimizer.zero_grad()
            (model(torch.from_numpy(x)) - torch.from_numpy(y)).pow(2).mean().backward()
            optimizer.step()
        return
    import keras

    model = keras.Sequential(
        [keras.layers.Input((8,)), keras.layers.Dense(width), keras.layers.Dense(1)]
    )
    if framework == "tensorflow":
        import tensorflow as tf

        for step in range(_STEPS):
            before_step(step)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            tape = hvd.DistributedGradientTape(tape)
            tape.gradient(loss, model.trainable_variables)
        return

    class Disturb(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            before_step(batch)

    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    data = np.tile(x, (_STEPS, 1)), np.tile(y, (_STEPS, 1))
    model.fit(*data, batch_size=4, verbose=0, callbacks=[Disturb()])


def suffer(fault: tuple) -> tuple[str, float]:
    """Run a fault on this rank; what became of it, and a sum over all ranks afterwards."""
    fault = Fault(*fault)
    hvd = binding(fault.framework)
    hvd.init()
    try:
        _do(hvd, fault, hvd.rank() == fault.culprit)
        seen = "fine"
    except BaseException as error:
        seen = f"{type(error).__name__}: {error}"
    hvd.shutdown()
    hvd.init()
    total = hvd.allreduce(tensor(fault.framework, (3,)), op=hvd.Sum, name="afterwards")
    return seen, float(total[0])


def _do(hvd: Any, fault: Fault, culprit: bool) -> None:
    framework, kind = fault.framework, fault.kind
    one = tensor(framework, (4, 2))
    if kind == "shape":
        hvd.allreduce(tensor(framework, (4, 3) if culprit else (4, 2)), name="x")
    elif kind == "dtype":
        hvd.allreduce(tensor(framework, (4, 2), "float64" if culprit else "float32"), name="x")
    elif kind == "op":
        hvd.allreduce(one, op=hvd.Sum if culprit else hvd.Average, name="x")
    elif kind == "root":
        hvd.broadcast(one, root_rank=int(culprit), name="x")
    elif kind == "kind":
        (hvd.allgather if culprit else hvd.allreduce)(one, name="x")
    elif kind == "name":
        hvd.allreduce(one, name="y" if culprit else "x")
    elif kind == "order":
        for name in "yx" if culprit else "xy":
            hvd.allreduce(one, name=name)
    elif kind == "async order":
        handles = [hvd.allreduce_async(one, name=n) for n in ("zyx" if culprit else "xyz")]
        assert all(hvd.synchronize(handle).sum() == 8 for handle in handles)
    elif kind == "layer":
        train(framework, lambda step: None, 17 if culprit else 16)
    elif kind in ("raise", "skip"):
        train(framework, lambda step: _leave(kind) if culprit and step == fault.step else None)
    elif kind == "interrupt":
        hvd.allreduce(one, name="warm")  # the first call of a graph takes long
        if culprit:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            time.sleep(2)
        # What the culprit had given before the interrupt may be enough for the first one.
        for name in "xy":
            hvd.allreduce(one, name=name)
    elif kind == "stop":
        train(framework, lambda step: _stop() if culprit and step == fault.step else None)


class Gone(Exception):
    """The culprit does not take part any more."""


def _leave(kind: str) -> None:
    raise ValueError("bad batch") if kind == "raise" else Gone("early")


def _stop() -> None:
    subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def die(fault: Fault) -> None:
    """The program of a rank in a job that a fault ends."""
    hvd = binding(fault.framework)
    hvd.init()
    print("folder", os.path.dirname(os.environ["HVDLITE_REPORT"]), flush=True)

    def before_step(step: int) -> None:
        if step == fault.step and hvd.rank() == fault.culprit:
            exec(fault.kind, {"hvd": hvd, "os": os, "sys": sys, "signal": signal, "time": time})

    train(fault.framework, before_step)
    hvd.allreduce(tensor(fault.framework, (3,)), name="the end")


# The judge


def judge_survived(fault: Fault, answers: list[tuple[str, float]]) -> str:
    """What is wrong with the ranks' answers, "" for nothing."""
    if any(total != fault.np for _, total in answers):
        return f"no recovery: {answers}"
    good = SURVIVED[fault.kind]
    for rank, (seen, _) in enumerate(answers):
        if (seen == "fine") != good:
            return f"rank {rank}: {seen}; all: {answers}"
        if not good and rank != fault.culprit and f"rank {fault.culprit}" not in seen:
            return f"rank {rank} does not name the culprit: {seen}"
    return ""


def judge_deadly(fault: Fault) -> str:
    """Start a job that ends by a fault; what is wrong with its end, "" for nothing."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="fl") as folder:
        job = subprocess.Popen(
            [sys.executable, "-m", "hvdrun", "-np", str(fault.np), sys.executable, __file__,
             "--as-rank", json.dumps(fault)],
            env=environment(None, {**QUIET, _MARK: mark, "TMPDIR": folder}),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            out, err = job.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            job.kill()
            out, err = job.communicate()
            return f"still running after {LIMIT} s\n{out}\n{err}"
        last = (err.rstrip().splitlines() or [""])[-1]
        if job.returncode != DEADLY[fault.kind]:
            return f"exit code {job.returncode}\n{err}"
        if not last.startswith(f"horovodrun: rank {fault.culprit} "):
            return f"the last line does not name the culprit: {last}\n{err}"
        folders = {line.rpartition("folder ")[2] for line in out.splitlines() if "folder " in line}
        left = [path.name for path in Path(folder).iterdir() if "torchinductor" not in path.name]
        left += filter(os.path.exists, folders)
        end = time.monotonic() + 15
        while (processes := list(_marked(mark))) and time.monotonic() < end:
            time.sleep(0.1)
        return f"left: {left} {processes}" if left or processes else ""


def _marked(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == mark and process.status() != "zombie":
                yield process
        except (psutil.Error, OSError):
            continue


def run(seed: int, count: int, np: int, kinds: dict[str, Any]) -> Iterator[tuple[Fault, str]]:
    """Each fault with what is wrong about its end."""
    if kinds is DEADLY:
        for fault in faults(seed, DEADLY, np, count):
            yield fault, judge_deadly(fault)
        return
    ranks = Ranks(np, STALL, TORCH + KERAS)
    try:
        for fault in faults(seed, SURVIVED, np, count):
            try:
                yield fault, judge_survived(fault, ranks.run(suffer, tuple(fault), timeout=LIMIT))
            except AssertionError as error:  # the next one gets new ranks
                yield fault, str(error)
    finally:
        ranks.stop()


def main() -> int:
    """Run random faults on two, three and four ranks; 1 if one ended badly."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=60, help="how many in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--deadly", type=float, default=0.25, help="share of those that end a job")
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_rank:
        die(Fault(*json.loads(args.as_rank)))
        return 0
    bad = number = 0
    deadly = round(args.count * args.deadly)
    for kinds, count in ((SURVIVED, args.count - deadly), (DEADLY, deadly)):
        for i, np in enumerate((2, 3, 4)):
            for fault, wrong in run(args.seed, (count + i) // 3, np, kinds):
                number += 1
                bad += bool(wrong)
                print(f"{number}: {fault}: {wrong or 'good'}", flush=True)
    print(f"{number} faults, {bad} of which ended badly")
    return int(bad > 0)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
