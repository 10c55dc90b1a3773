"""A training with PyTorch whose ranks are killed, stopped, taken away and joined by others.

`torch/test_elastic_job.py` lets some things happen; any number come by

    PYTHONPATH=.:tests python tests/elastic_training.py --events 30 --epochs 20 --seed 1
    PYTHONPATH=.:tests python tests/elastic_training.py --kills 100

What was trained is then computed once more, by one process that nothing happens to, on the same
numbers of ranks: it must have seen the same samples, and come to the same weights.
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
from pathlib import Path
from typing import Any

import psutil
from mpi import ROOT, paths

SAMPLES, BATCH, SEED = 240, 2, 5
_MARK = "HVDLITE_ELASTIC_TEST"
# The variables that name a job's folders in memory.
FOLDERS = "HVDLITE_ELASTIC", "OMPI_MCA_btl_sm_backing_directory"
LIMIT = 120  # seconds for anything, on a machine that is busy with other things
PROGRAM = """
import json, os, signal, sys, time
import torch
import horovod.torch as hvd
from elastic_training import BATCH, FOLDERS, SEED, model_and_data

epochs, pause = int(sys.argv[1]), float(sys.argv[2])
hvd.init()
torch.set_num_threads(1)
model, data = model_and_data()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
sampler = hvd.elastic.ElasticSampler(data, seed=SEED)
state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, steps=[])
raises = []
signal.signal(signal.SIGUSR1, lambda *_: raises.append(1))
signal.signal(signal.SIGUSR2, lambda *_: os._exit(3))
rank_of_host = hvd.rank(), os.environ["HOROVOD_HOSTNAME"], os.getpid()
print("folders", json.dumps([os.environ[name] for name in FOLDERS]), flush=True)
print("ranks", json.dumps(hvd.allgather_object(rank_of_host)), flush=True)

@hvd.elastic.run
def train(state):
    while state.epoch < epochs:
        for batch in torch.utils.data.DataLoader(range(len(data)), BATCH, sampler=state.sampler):
            if raises:
                raise RuntimeError("told to fail")
            optimizer.zero_grad()
            loss = model(data[batch]).square().mean()
            loss.backward()
            optimizer.step()
            time.sleep(pause)
            state.sampler.record_batch(0, len(batch))
            told = hvd.allgather_object((batch.tolist(), loss.item()))
            state.steps.append((state.epoch, hvd.size(), told))
            state.commit()
            if hvd.rank() == 0:
                print("step", len(state.steps), state.epoch, hvd.size(), flush=True)
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)

train(state)
if hvd.rank() == 0:
    weights = [w.tolist() for w in model.state_dict().values()]
    print("result", json.dumps([state.steps, weights]), flush=True)
"""


def model_and_data() -> tuple[Any, Any]:
    """The same on every rank and in every process."""
    import torch

    torch.manual_seed(0)
    return torch.nn.Linear(3, 2), torch.randn(SAMPLES, 3)


def smooth(steps: list) -> tuple[list, list]:
    """The same training on one process, on as many samples a step; its losses and weights.

    AssertionError if a sample was left out, or has come more often than ranks need to be equal.
    """
    import torch

    model, data = model_and_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses, epoch, left = [], -1, []
    for now, size, told in steps:
        if now != epoch:
            assert left == [], "an epoch was not finished"
            epoch, left = now, list(range(SAMPLES))
            random.Random(SEED + epoch).shuffle(left)
        batches = [batch for batch, _ in told]
        seen = [sample for samples in zip(*batches, strict=True) for sample in samples]
        assert len(batches) == size and len(seen) <= BATCH * size
        # The next ones that nobody has seen; where they don't suffice, some others come again.
        assert seen[: len(left)] == left[: len(seen)] and len(seen) - len(left) < size, told
        left = left[len(seen) :]
        optimizer.zero_grad()
        found = [model(data[batch]).square().mean() for batch in batches]
        (sum(found) / size).backward()
        optimizer.step()
        losses.append([loss.item() for loss in found])
    assert left == [], "the last epoch was not finished"
    return losses, [weight.tolist() for weight in model.state_dict().values()]


class Training:
    """A running horovodrun; hosts are this machine's names, which discovery reads from a file."""

    def __init__(self, hosts: list[str], *options: object, epochs: int = 3, pause: float = 0.0):
        self.folder = tempfile.TemporaryDirectory(prefix="el")
        (Path(self.folder.name) / "train.py").write_text(PROGRAM)
        self.file = Path(self.folder.name, "hosts")
        self.set_hosts(hosts)
        self.mark = uuid.uuid4().hex
        self.ranks: list[tuple[int, str, int]] = []  # of this generation: rank, host, process
        self.steps = self.size = self.generations = 0
        self.folders: set[str] = set()
        self.output: list[str] = []
        self.result: Any = None
        self.changed = threading.Condition()
        words = [sys.executable, "-m", "hvdrun", *options, "--host-discovery-script"]
        words += [f"cat {self.file}", sys.executable, Path(self.folder.name, "train.py")]
        more = {"PYTHONPATH": paths("tests"), _MARK: self.mark, "TMPDIR": self.folder.name}
        self.process = subprocess.Popen(
            list(map(str, [*words, epochs, pause])),
            env=os.environ | more,
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves nothing; AssertionError if the job has."""
        self.process.kill()
        self.process.wait()
        end = time.monotonic() + 30
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.1)
        for process in left:
            process.kill()
        self.reader.join()
        names = sorted(os.listdir(self.folder.name))
        self.folder.cleanup()
        assert not left, left
        assert not any(map(os.path.exists, self.folders)), self.folders
        assert {name for name in names if "torch" not in name} == {"hosts", "train.py"}, names

    def processes(self) -> list[psutil.Process]:
        """All that belong to it."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self.mark and process.status() != "zombie":
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def set_hosts(self, hosts: list[str]) -> None:
        """What discovery says from now on."""
        new = Path(self.folder.name, "hosts.new")
        new.write_text("\n".join(hosts))
        new.replace(self.file)

    def _read(self) -> None:
        for line in self.process.stdout:
            with self.changed:
                self.output.append(line)
                _, _, text = line.rpartition(">:")
                match text.split(maxsplit=1):
                    case ["folders", rest]:
                        self.folders.update(json.loads(rest))
                    case ["ranks", rest]:
                        if line.startswith("[1,0]"):
                            self.ranks = json.loads(rest)
                            self.generations += 1
                    case ["step", rest]:
                        self.steps, _, self.size = map(int, rest.split())
                    case ["result", rest]:
                        self.result = json.loads(rest)
                self.changed.notify_all()

    def wait(self, what: Any, seconds: float = LIMIT) -> None:
        """Wait until `what(self)`; AssertionError with the output if that does not come."""
        with self.changed:
            assert self.changed.wait_for(lambda: what(self), seconds), "".join(self.output)

    def wait_for_step(self, size: int | None = None, seconds: float = LIMIT) -> None:
        """Wait for a further step, on `size` ranks if that is given."""
        before = self.steps
        self.wait(lambda job: job.steps > before and size in (None, job.size), seconds)

    def send(self, host: str, number: int) -> None:
        """Send a signal to a rank of that host, and wait until a new generation makes steps."""
        while True:
            before = self.generations
            try:
                os.kill(next(pid for _, name, pid in self.ranks if name == host), number)
                break
            except ProcessLookupError:  # all start anew at this moment, with a host that has come
                self.wait(lambda job: job.generations > before)  # noqa: B023
        self.wait(lambda job: job.generations > before)
        self.wait_for_step()

    def end(self) -> str:
        """Wait for its end; returns the output. It must have trained right, if it has a result."""
        self.process.wait(LIMIT)
        self.reader.join()
        output = "".join(self.output)
        if self.result is not None:
            check(*self.result)
        return output


def check(steps: list, weights: list) -> None:
    """AssertionError if a training on that many ranks does not do just this."""
    import numpy as np

    losses, right = smooth(steps)
    for (_, _, told), want in zip(steps, losses, strict=True):
        np.testing.assert_allclose([loss for _, loss in told], want, rtol=1e-4, atol=1e-6)
    for have, want in zip(weights, right, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-6)


HOSTS = ["localhost", "127.0.0.1", "127.0.0.2", "127.0.0.3"]
OPTIONS = ("-np", 2, "--min-np", 1, "--max-np", 3, "--cooldown-range", 1, 2)
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "raise": signal.SIGUSR1,
           "exit": signal.SIGUSR2}  # fmt: skip


def events(count: int, seed: int, epochs: int, pause: float) -> str:
    """Let `count` things happen by chance to a training; returns how it ended."""
    chance, hosts = random.Random(seed), HOSTS[:2]
    with Training(hosts, *OPTIONS, epochs=epochs, pause=pause) as job:
        job.wait_for_step()
        for number in range(count):
            kinds = [*SIGNALS, *(["join"] if len(hosts) < 4 else []),
                     *(["leave"] if len(hosts) > 2 else [])]  # fmt: skip
            kind = chance.choice(kinds)
            time.sleep(chance.random())
            job.wait(lambda job: len(job.ranks) > 1)  # a job whose ranks all fail has failed
            before, started = job.steps, time.monotonic()
            if kind == "join":
                hosts = [*hosts, next(name for name in HOSTS if name not in hosts)]
                job.set_hosts(hosts)
                job.wait_for_step()
            elif kind == "leave":
                hosts = [name for name in hosts if name != chance.choice(hosts[:3])][:3]
                job.set_hosts(hosts)
                job.wait(lambda job: all(name in hosts for _, name, _ in job.ranks))  # noqa: B023
                job.wait_for_step()
            else:
                job.send(chance.choice([name for _, name, _ in job.ranks]), SIGNALS[kind])
            seconds = time.monotonic() - started
            print(f"{number + 1:3} {kind:5} at step {before:4}: {job.size} ranks, {seconds:.1f} s")
        output = job.end()
        assert job.result is not None and job.process.returncode == 0, output
        samples = sum(len(batch) for _, _, told in job.result[0] for batch, _ in told)
        return f"{len(job.result[0])} steps, {samples} samples, {job.generations} generations"


def kills(count: int, seed: int) -> list[float]:
    """Kill one of three ranks so often; returns the seconds until training goes on each time."""
    chance, seconds = random.Random(seed), []
    with Training(HOSTS[:3], *OPTIONS, epochs=10**6, pause=0.05) as job:
        for _ in range(count):
            job.wait(lambda job: len(job.ranks) == 3)
            job.wait_for_step(3)
            time.sleep(chance.random())
            started = time.monotonic()
            job.send(chance.choice([name for _, name, _ in job.ranks]), signal.SIGKILL)
            seconds.append(time.monotonic() - started)
            print(f"{len(seconds):4}: {seconds[-1]:.2f} s", flush=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the job ends with it
    if args.events:
        print(events(args.events, args.seed, args.epochs, args.pause))
    if args.kills:
        seconds = sorted(kills(args.kills, args.seed))
        middle = seconds[len(seconds) // 2]
        late = sum(each > 10 for each in seconds)
        print(f"{len(seconds)} kills: median {middle:.2f} s, longest {seconds[-1]:.2f} s, "
              f"{late} of them longer than 10 s; no process and no file is left")  # fmt: skip


if __name__ == "__main__":
    main()
