"""The loop of an elastic job: wait for hosts, run a generation, see how it ended, once more."""

import ast
import contextlib
import json
import re
import sys
import time
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import TextIO

from hvdrun.elastic import ask
from hvdrun.elastic.agents import Agents
from hvdrun.elastic.generation import Generation
from hvdrun.elastic.hosts import Pool, Slot, machine_of
from hvdrun.errors import LaunchError, say
from hvdrun.failure import Failure
from hvdrun.prepare import Preparation

_WAIT_SECONDS = 0.1  # between two looks at the hosts
# What takes seconds to import, for each rank anew, and can be imported before a fork; and the word
# in a program's imports by which it is known.
_SLOW = {"torch": "torch", "torch._dynamo": "torch", "tensorflow": "tensorflow", "keras": "keras",
         "tf_keras": "tf_keras", "hvdlite.torch": r"(hvdlite|horovod)\.torch"}  # fmt: skip


def run(preparation: Preparation, np: int, out: int | TextIO, err: int | TextIO) -> int:
    """Run a command on the hosts that there are, from --min-np to --max-np ranks, `np` at the
    start; returns the exit code: 0, or that of the rank whose failure was the last.

    Raises LaunchError for options that can't be meant.
    """
    args, environment = preparation.args, preparation.environment
    least = args.min_np or np
    if args.max_np and args.max_np < max(np, least):
        raise LaunchError(f"--max-np {args.max_np} is less than {max(np, least)}, the ranks wanted")
    with (
        contextlib.closing(Pool(args, np, environment)) as pool,
        contextlib.closing(Agents(args, environment, slow_modules(preparation))) as agents,
    ):
        return Driver(preparation, least, pool, agents).run(np, out, err)


class Driver:
    """One job; `least` is the number of ranks below which it waits."""

    def __init__(self, preparation: Preparation, least: int, pool: Pool, agents: Agents):
        self.preparation, self.least, self.pool, self.agents = preparation, least, pool, agents
        self.args: Namespace = preparation.args
        self.last = Failure(1, "")

    def run(self, np: int, out: int | TextIO, err: int | TextIO) -> int:
        """Run generations until one succeeds, or none is possible any more."""
        number, need = 0, max(np, self.least)
        while True:
            try:
                slots = self._wait(need, number)
                if number:
                    places = Counter(slot.host for slot in slots)
                    seen = ",".join(f"{host}:{count}" for host, count in places.items())
                    ranks = "1 rank" if len(slots) == 1 else f"{len(slots)} ranks"
                    say(f"going on with {ranks} ({seen})")
                generation = Generation(number, slots, self.pool, self.agents, self.args, out, err)
                self._run(generation)
                if generation.stopped_by:
                    return 128 + generation.stopped_by
                if not generation.failures and not generation.again:
                    return 0
                self._leave_out_failed(generation)
            except LaunchError as error:
                if not number and not self.last.text:
                    raise  # it has not begun
                say(f"{self.last.text} {error}".strip())
                return self.last.code
            number, need = number + 1, self.least

    def _wait(self, need: int, number: int) -> list[Slot]:
        """The slots for the next generation, once there are `need`."""
        said, until = False, time.monotonic() + self.args.elastic_timeout
        while True:
            slots = self.pool.slots()
            machines = list(dict.fromkeys(slot.machine for slot in slots))
            if len(slots) >= need:
                if number and not self.agents.processes.keys() & set(machines):
                    raise LaunchError("None of the hosts that have the training's state is left.")
                if self._prepare(machines, slots):
                    return slots
                continue
            there = f"{need} slots are needed, and there are {len(slots)}"
            if not self.pool.can_have(need):
                raise LaunchError(f"{there}; no host will come (--blacklist-cooldown-range lets "
                                  "those that failed come back).")  # fmt: skip
            if time.monotonic() > until:
                raise LaunchError(f"{there} after {self.args.elastic_timeout:g} s "
                                  "(--elastic-timeout).")  # fmt: skip
            if not said:
                say(f"{there}; waiting for hosts")
                said = True
            time.sleep(_WAIT_SECONDS)

    def _prepare(self, machines: list[str], slots: list[Slot]) -> bool:
        """Whether all machines can start ranks; those that can't are left out."""
        bad = self.preparation.problems(machines)
        failed = self.agents.start([machine for machine in machines if machine not in bad])
        bad |= dict.fromkeys(failed, "it started no agent for the ranks")
        for host in dict.fromkeys(slot.host for slot in slots if slot.machine in bad):
            say(f"{host}: {bad[machine_of(host)]}; {self._leave_out(host)}")
        return not bad

    def _leave_out(self, host: str) -> str:
        """Leave a host out, and say so."""
        self.pool.leave_out(host)
        seconds = self.pool.out_until[host] - time.monotonic()
        return f"{host} is left out" + (f" for {seconds:.0f} s" if self.args.cooldown_range else "")

    def _run(self, generation: Generation) -> None:
        number, slots = generation.number, generation.slots
        self.agents.tell("start", number, json.dumps(self.pool.variables(slots)))
        placed = list(Counter(slot.machine for slot in slots).items())
        words = [sys.executable, "-S", "-E", ask.__file__, self.agents.folder, str(number)]
        try:
            self.preparation.run(generation, placed, words)
        finally:
            self.agents.kill_ranks()

    def _leave_out_failed(self, generation: Generation) -> None:
        """Leave out hosts that failed; LaunchError if there is no further generation."""
        failures, slots = generation.failures, generation.slots
        for rank, failure in failures.items():
            self.last = failure
            host = slots[rank].host
            if not self.pool.is_out(host):
                say(f"{failure.text} {self._leave_out(host)}")
        for rank in generation.early:
            self.last = Failure(1, f"rank {rank} ended early, with code 0, while others still "
                                   "waited for it.")  # fmt: skip
            raise LaunchError("All ranks must make the same number of steps.")
        if len(failures) == len(slots) and all(0 < f.code < 128 for f in failures.values()):
            raise LaunchError("All ranks have failed.")
        if all(self.pool.is_lost(slot.host) for slot in slots):
            raise LaunchError("All hosts have failed (--blacklist-cooldown-range lets them come "
                              "back).")  # fmt: skip
        limit = self.args.reset_limit
        if limit is not None and generation.number >= limit:
            raise LaunchError("The ranks have started anew as often as --reset-limit "
                              f"{limit} lets them.")  # fmt: skip


def slow_modules(preparation: Preparation) -> list[str]:
    """What a Python script imports that takes long, as far as that can be imported before it runs:
    not what comes after a change of the environment, on which it may depend, and nothing for one
    of TensorFlow 1, which is made ready for it before it is imported."""
    imports = ""
    with contextlib.suppress(OSError, ValueError, SyntaxError):  # a rank will say it better
        program = Path(preparation.script or "").read_text()
        if re.search(r"\b(tf\.|MonitoredTraining)Session\(", program):
            return []
        for node in ast.parse(program).body:
            text = ast.unparse(node)
            if "environ" in text:
                break
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports += f"{text}\n"
    return [name for name, word in _SLOW.items() if re.search(rf"\b{word}\b", imports)]
