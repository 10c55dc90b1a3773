"""One generation of ranks: a job of mpirun that ends at the first failure, or at a change of hosts.

What happens to ranks is told by their machines' agents; mpirun's word counts where they are silent.
"""

import signal
import time
from argparse import Namespace
from typing import NamedTuple, TextIO

from hvdrun.elastic.agents import Agents
from hvdrun.elastic.hosts import Pool, Slot, change
from hvdrun.failure import Report, explain, explain_reports
from hvdrun.job import Job

_TOGETHER_SECONDS = 0.3  # between failures that count as one: of all ranks, say
_LEAVE_SECONDS = 10.0  # for all ranks to notice what one has, and then to leave
_MPIRUN_SECONDS = 3.0  # for mpirun to end after the ranks; Slurm's may never


class Failure(NamedTuple):
    """How a rank has failed: its exit code, and the same in words."""

    code: int
    text: str


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
        self.lost: set[str] = set()  # machines
        self.here: set[int] = set()  # ranks that have come to init()
        self.again: set[int] = set()  # ranks that want a new generation
        self.ended: set[int] = set()
        self.code = 0
        self._told = slots  # the hosts of which ranks have been told
        self._here_until = self._kill_at = float("inf")

    @property
    def early(self) -> set[int]:
        """Ranks that have ended well while others wanted to go on."""
        well = {rank for rank, report in self.reports.items() if report.code == 0}
        return well - self.again if self.again and not self.failures else set()

    def tick(self) -> None:
        """Look at agents and hosts, and end the generation when it is time."""
        for machine, words in self.agents.read():
            self._take(machine, words)
        now = time.monotonic()
        slots = self.pool.slots()
        if (kind := change(self._told, slots)) and self.here:
            self._told = slots
            self.agents.tell(order="change", change=f"{time.time()} {kind}\n")
        if self.stopped_by:  # each rank may come to its end
            self._kill_at = now if len(self.ended) == self.np else float("inf")
        if now >= min(self._here_until, self._kill_at):
            self._end_ranks(now)

    def _take(self, machine: str, words: list[str]) -> None:
        match words:
            case ["said", "here", rank]:
                self.here.add(int(rank))
                self._here_until = time.monotonic() + self.args.start_timeout
                if len(self.here) == self.np:
                    self._here_until = float("inf")
                    self.pool.go_on()
            case ["said", "again", rank]:
                self.again.add(int(rank))
                self._kill_in(_LEAVE_SECONDS)
            case ["said", "end", rank, code, cause]:
                report = Report(int(code), None if cause == "-" else int(cause))
                self.reports.setdefault(int(rank), report)
                if report.code and report.cause is None:
                    self._fail(int(rank), {"code": report.code})
            case ["end", rank, "stopped"]:
                text = f"rank {rank} was stopped (by SIGSTOP, say) and did not go on."
                self._fail(int(rank), {}, text)
            case ["end", rank, "silent"]:
                self._fail(int(rank), {"improper": 1})
            case ["end", rank, status]:
                self.ended.add(int(rank))
                self._end(int(rank), int(status))
            case ["lost"]:
                self.lost.add(machine)
                for rank, slot in enumerate(self.slots):
                    if slot.machine == machine:
                        self._fail(rank, {}, f"{slot.host} has gone, and rank {rank} with it.")

    def _end(self, rank: int, status: int) -> None:
        report = self.reports.get(rank)
        if status and rank in self.again:
            self._kill_in(_TOGETHER_SECONDS)  # the others wait for it
        elif report and report.cause is not None:
            pass  # that one has failed
        elif (self.failures or self.doubtful) and status == -signal.SIGTERM:
            pass  # by mpirun
        elif status < 0:
            self._fail(rank, {"signal": -status})
        elif status and not report:
            self.doubtful[rank] = self._failure(rank, {"code": status})
            self._kill_in(_TOGETHER_SECONDS)

    def _failure(self, rank: int, end: dict[str, int]) -> Failure:
        return Failure(*explain(1, end | {"rank": rank}, {}, 1))

    def _fail(self, rank: int, end: dict[str, int], text: str = "") -> None:
        failure = Failure(1, text) if text else self._failure(rank, end)
        self.failures.setdefault(rank, failure)
        self._kill_in(_TOGETHER_SECONDS)

    def _kill_in(self, seconds: float) -> None:
        self._kill_at = min(self._kill_at, time.monotonic() + seconds)

    def _end_ranks(self, now: float) -> None:
        """Kill what is left; those that did not do what all others have done are to blame."""
        if now > self._here_until:
            text = "rank {} did not come to hvd.init() within {:g} s (--start-timeout)."
            for rank in set(range(self.np)) - self.here:
                self._fail(rank, {}, text.format(rank, self.args.start_timeout))
        elif self.again and not self.failures and not self.doubtful:
            for rank in set(range(self.np)) - self.again - self.reports.keys():
                self._fail(rank, {}, f"rank {rank} hangs: it did not notice what all others have.")
        self._here_until = self._kill_at = float("inf")
        self.agents.kill_ranks()
        self.until = min(self.until, now + _MPIRUN_SECONDS)

    def _verdict(self) -> int:
        if self.stopped_by:
            return super()._verdict()
        for machine, words in self.agents.read():
            self._take(machine, words)
        self.failures = self.failures or self.doubtful
        self.code = self.mpirun.returncode
        if self.code and not self.failures and not self.again:
            found = explain_reports(self.reports, self.np)
            code, text = found or explain(self.code, self.end, self.pids, self.np)
            rank = self.end.get("rank", next(iter(self.reports), 0))
            self.failures[rank] = Failure(code, text)
        return self.code
