"""Random failures in a training on two GPUs: `python tests/gpu_faults.py --count 50 --seed 1`.

Each time one rank fails in the forward pass, the backward pass or the step. All ranks must raise
within seconds, and train together again after `init()`; a killed rank must end the job.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

KINDS = ("memory", "exception", "device", "interrupt", "kill")
PLACES = ("forward", "backward", "step")
SECONDS = 20.0  # until all ranks have raised, at most
LEAVING = 137  # the exit code of a job whose rank was killed


def faults(count: int, seed: int) -> list[tuple[str, str, int]]:
    """What fails, where, and on which rank."""
    chance = random.Random(seed)
    return [
        (chance.choice(KINDS), chance.choice(PLACES), chance.randrange(2)) for _ in range(count)
    ]


def fail(kind: str) -> None:
    """Fail now, in the way of that name."""
    import torch

    if kind == "memory":
        torch.empty(1 << 50, device="cuda")
    elif kind == "device":
        torch.ones(3, device="cuda") + torch.ones(3, device="cpu")
    elif kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "exception":
        raise RuntimeError("a reason")


def train(hvd, fault: tuple[str, str, int] | None, steps: int) -> float:
    """Train, and fail at the third step; the sum of the weights."""
    import torch

    kind, place, failing = fault or ("", "", -1)
    torch.manual_seed(1)
    layers = [torch.nn.Linear(256, 256) for _ in range(6)]
    model = torch.nn.Sequential(*layers).cuda()
    plain = torch.optim.SGD(model.parameters(), lr=0.001)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    now = [False]

    def maybe(here: str) -> None:
        if now[0] and place == here:
            fail(kind)

    layers[3].register_forward_hook(lambda *_: maybe("forward"))
    layers[3].register_full_backward_hook(lambda *_: maybe("backward"))
    optimizer.register_step_pre_hook(lambda *_: maybe("step"))
    if kind == "interrupt":  # at any moment
        steps = 1 << 30
        if hvd.rank() == failing:
            wait = {"forward": 0.2, "backward": 0.25, "step": 0.3}[place]
            threading.Timer(wait, os.kill, (os.getpid(), signal.SIGINT)).start()
    for step in range(steps):
        now[0] = step == 2 and hvd.rank() == failing and kind != "interrupt"
        optimizer.zero_grad()
        model(torch.ones(64, 256, device="cuda") * hvd.rank()).square().mean().backward()
        optimizer.step()
    return float(sum(each.sum() for each in model.parameters()))


def worker(listed: list) -> None:
    """Fail in each of the ways, one after the other, and say how it went."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    torch.cuda.set_device(hvd.local_rank())
    expected = train(hvd, None, 4)
    for number, fault in listed:
        began, raised = time.monotonic(), "nothing"
        try:
            train(hvd, fault, 6)
            hvd.allreduce(torch.ones(3, device="cuda"), name="after")
        except BaseException as error:
            raised = type(error).__name__
        took = time.monotonic() - began
        hvd.shutdown()  # as the next cell of a notebook would
        hvd.init()
        again = train(hvd, None, 4)
        good = raised != "nothing" and took < SECONDS and abs(again - expected) < 1e-3
        print(json.dumps([number, *fault, hvd.rank(), raised, round(took, 1), good]), flush=True)


def job(listed: list) -> tuple[int, list[list], str]:
    """Run faults in one job: its exit code, what the ranks said, and all its output."""
    command = [sys.executable, "-m", "hvdrun", "-np", "2", sys.executable, __file__]
    command += ["--worker", json.dumps(listed)]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    limit = 60 + 2 * SECONDS * len(listed)
    try:
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode(errors="replace")
        return 124, [], output
    said = [json.loads(line[line.index("[", 8) :]) for line in done.stdout.splitlines()
            if line.rstrip().endswith(("true]", "false]"))]  # fmt: skip
    return done.returncode, said, done.stdout


def main() -> int:
    """Run the faults; 1 if any of them went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", type=json.loads)
    args = parser.parse_args()
    if args.worker is not None:
        worker([(number, tuple(fault)) for number, fault in args.worker])
        return 0
    listed = list(enumerate(faults(args.count, args.seed)))
    staying = [each for each in listed if each[1][0] != "kill"]
    code, said, output = job(staying)
    good = {(each[0], each[4]) for each in said if each[-1]}
    wrong = [each for each in staying if not {(each[0], 0), (each[0], 1)} <= good]
    slowest = max((each[6] for each in said), default=0.0)
    if wrong or code:
        print(f"exit code {code}; went wrong: {wrong}\n{output[-4000:]}")
    for each in (each for each in listed if each[1][0] == "kill"):
        began = time.monotonic()
        code, _, output = job([each])
        took = time.monotonic() - began
        if code != LEAVING or f"rank {each[1][2]}" not in output.splitlines()[-1]:
            wrong.append(each)
            print(f"{each}: exit code {code} after {took:.0f} s\n{output[-2000:]}")
    print(f"{len(listed) - len(wrong)} of {len(listed)} good; slowest to raise: {slowest:.1f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
