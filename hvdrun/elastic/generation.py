"""One generation of ranks: a job of mpirun that ends at the first failure, or at a change of hosts.

What happens to ranks is told by their machines' agents; mpirun's word counts where they are silent.
"""

import signal
import time
from argparse import Namespace
from typing import TextIO

from hvdrun.elastic.agents import Agents
from hvdrun.elastic.hosts import Pool, Slot, change
from hvdrun.failure import Failure, explain
from hvdrun.job import Job

_TOGETHER_SECONDS = 0.3  # between failures that count as one: of all ranks, say
_LEAVE_SECONDS = 10.0  # for all ranks to notice what one has, and then to leave
_MPIRUN_SECONDS = 3.0  # for mpirun to end after the ranks; Slurm's may never


class Generation(Job):
    """A job on the given slots, the n-th (`number`, from 0) of its training."""

    def __init__(
        self, number: int, slots: list[Slot], pool: Pool, agents: Agents, args: Namespace,
        out: int | TextIO, err: int | TextIO,
    ):  # fmt: skip
        super().__init__(len(slots), args, out, err)
        self.number, self.slots, self.pool, self.agents = number, slots, pool, agents
        self.failures: dict[int, Failure] = {}
        # Ranks that have ended with a code and said nothing: by os._exit, or as MPI ends those
        # whose connection to a dead rank breaks. They have failed if no other has.
        self.doubtful: dict[int, Failure] = {}
        self.here: set[int] = set()  # ranks that have come to init()
        self.again: set[int] = set()  # ranks that want a new generation
        self.ended: set[int] = set()
        self._told = slots  # the hosts of which ranks have been told
        self._here_until = self._kill_at = float("inf")
        self._over = False
        self._signals: list[int] = []  # for the ranks

    @property
    def early(self) -> set[int]:
        """Ranks that have ended well while others wanted to go on."""
        well = {rank for rank, report in self.reports.items() if report.code == 0}
        return well - self.again if self.again and not self.failures else set()

    def send(self, number: int, _frame: object = None) -> None:
        """Send a signal to the ranks, though not at once, in the midst of something."""
        self._signals.append(signal.SIGTERM if number == signal.SIGHUP else number)

    def tick(self) -> None:
        """Look at agents and hosts, and end the generation when it is time."""
        while self._signals:
            self.agents.tell("signal", int(self._signals.pop(0)))
        for machine, words in self.agents.read():
            self._take(machine, words)
        slots = self.pool.slots()
        if (kind := change(self._told, slots)) and self.here:
            self._told = slots
            self.agents.tell("change", time.time(), kind)
        if not self._over and self._is_over():
            self._over = True
            self.agents.kill_ranks()
            self.until = min(self.until, time.monotonic() + _MPIRUN_SECONDS)

    def _is_over(self) -> bool:
        """Whether the ranks that are left shall end now; those that did not do what all others have
        done are to blame."""
        now = time.monotonic()
        if len(self.ended) == self.np or self.stopped_by:  # after a signal each comes to its end
            return len(self.ended) == self.np
        if now >= self._here_until:
            self._blame(f"did not come to hvd.init() within {self.args.start_timeout:g} s "
                        "(--start-timeout).", self.here)  # fmt: skip
        elif now >= self._kill_at and self.again and not self.failures and not self.doubtful:
            done = self.again | self.reports.keys()
            self._blame("hangs: it did not notice what all others have.", done)
        return now >= min(self._here_until, self._kill_at)

    def _blame(self, text: str, done: set[int]) -> None:
        for rank in set(range(self.np)) - done:
            self._fail(rank, Failure(1, f"rank {rank} {text}"))

    def _take(self, machine: str, words: list[str]) -> None:
        match words:
            case ["here", rank]:
                self.here.add(int(rank))
                self._here_until = time.monotonic() + self.args.start_timeout
                if len(self.here) == self.np:
                    self._here_until = float("inf")
                    self.pool.go_on()
            case ["again", rank]:
                self.again.add(int(rank))
                self._kill_in(_LEAVE_SECONDS)
            case ["end", rank, code, cause]:
                self.hear(words)
                if code != "0" and cause == "-":
                    self._fail(int(rank), _failure(int(rank), code=int(code)))
            case ["stopped", rank]:
                text = f"rank {rank} was stopped (by SIGSTOP, say) and did not go on."
                self._fail(int(rank), Failure(1, text))
            case ["ended", rank, status]:
                self.ended.add(int(rank))
                self._end(int(rank), int(status))
            case ["lost"]:
                for rank, slot in enumerate(self.slots):
                    if slot.machine == machine:
                        self.ended.add(rank)
                        text = f"{slot.host} has gone, and rank {rank} with it."
                        self._fail(rank, Failure(1, text))

    def _end(self, rank: int, status: int) -> None:
        report = self.reports.get(rank)
        if rank in self.again:
            if status:
                self._kill_in(_TOGETHER_SECONDS)  # the others wait for it
        elif report and report.cause is not None:
            pass  # that one has failed
        elif status < 0:
            self._fail(rank, _failure(rank, signal=-status))
        elif status and not report:
            self.doubtful[rank] = _failure(rank, code=status)
            self._kill_in(_TOGETHER_SECONDS)
        elif rank in self.here and not report and self.np > 1:
            self._fail(rank, _failure(rank, improper=1))  # the others wait for it

    def _fail(self, rank: int, failure: Failure) -> None:
        self.failures.setdefault(rank, failure)
        self._kill_in(_TOGETHER_SECONDS)

    def _kill_in(self, seconds: float) -> None:
        self._kill_at = min(self._kill_at, time.monotonic() + seconds)

    def _verdict(self) -> int:
        if self.stopped_by:
            return super()._verdict()
        for machine, words in self.agents.read():
            self._take(machine, words)
        self.failures = self.failures or self.doubtful
        bad = self.mpirun.returncode or any(report.code for report in self.reports.values())
        if bad and not self.failures and not self.again:
            rank = self.end.get("rank", next(iter(self.reports), 0))
            self.failures[rank] = self.explain()
        return 0


def _failure(rank: int, **end: int) -> Failure:
    return explain(1, {"rank": rank, **end}, {}, 1)
