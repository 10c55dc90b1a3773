"""The two fixed shell scripts around a job, and the pipes that they use.

Every rank on this machine starts as RANK. It looks up its number, opens pipes of the launcher by
way of /proc, reports its process id, and becomes the user's program by `exec`: no extra process, no
file, and a millisecond or two of start-up. On another machine it only becomes the program, and its
output comes through mpirun. Rank 0's input goes the same way, as Open MPI 5 may lose its end.

GUARD waits for the launcher's end. If the launcher is killed, it stops mpirun and kills the ranks
that were reported to it. No text of the user's is ever part of these scripts.
"""

from __future__ import annotations

import os
import resource
import select
import stat

_BOOT_ID = "/proc/sys/kernel/random/boot_id"  # tells one machine from another

_RANK = """
launcher=$1 boot=$2 report=$3 input=$4 pipes=$5; shift 5
rank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-$SLURM_PROCID}}}
read -r here </proc/sys/kernel/random/boot_id
case $rank in ''|*[!0-9]*) exec "$@";; esac
[ "$here" = "$boot" ] || exec "$@"
number=0
for pipe in $pipes; do
  [ $number -eq $((2 * rank)) ] && out=$pipe
  [ $number -eq $((2 * rank + 1)) ] && err=$pipe
  number=$((number + 1))
done
fd=/proc/$launcher/fd
[ $rank -eq 0 ] && in=$fd/$input || in=/dev/null
echo "$rank $$" >$fd/$report
exec "$@" <$in >$fd/$out 2>$fd/$err
"""

_GUARD = """
ranks=
while read -r word; do
  [ "$word" = done ] && exit
  ranks="$ranks $word"
done
kill -TERM "$1"
wait_for_end() { while [ $ticks -gt 0 ] && kill -0 "$1"; do ticks=$((ticks - 1)); sleep 0.2; done; }
ticks=15 && wait_for_end "$1"
for rank in $ranks; do kill -KILL -- "-$rank"; kill -KILL "$rank"; done
ticks=5 && wait_for_end "$1"
kill -KILL "$1" && rm -rf "${TMPDIR:-/tmp}/ompi.$1"
"""


class Pipes:
    """Pipes that the launcher reads, one for reports and two for each rank; and rank 0's input."""

    def __init__(self, np: int) -> None:
        _allow_open_files(4 * np + 100)
        # The launcher keeps the writing ends too, so that no pipe ends before the job does.
        pairs = [os.pipe() for _ in range(2 + 2 * np)]
        self._all = {fd for pair in pairs for fd in pair}
        self._input, self.input = pairs.pop()
        self.report, *self.outputs = (read for read, _ in pairs)
        for fd in (self.report, *self.outputs):
            os.set_blocking(fd, False)

    def rank_command(self) -> list[str]:
        """The words that come before the user's command."""
        with open(_BOOT_ID) as file:
            boot = file.read().strip()
        words = [os.getpid(), boot, self.report, self._input, " ".join(map(str, self.outputs))]
        return ["/bin/sh", "-c", _RANK, "rank", *map(str, words)]

    def end_input(self) -> None:
        """Rank 0's input ends here."""
        self._all.remove(self.input)
        os.close(self.input)

    def close(self) -> None:
        """Give all descriptors back."""
        for fd in self._all:
            os.close(fd)


class Input:
    """The launcher's stdin on its way to rank 0, if it is a terminal or a file.

    Nothing else is read: a pipe may hold the next commands, as in a notebook's %%bash cell.
    """

    def __init__(self, pipes: Pipes) -> None:
        self._pipes = pipes
        try:
            self.open = os.isatty(0) or stat.S_ISREG(os.fstat(0).st_mode)
        except OSError:
            self.open = False
        if not self.open:
            pipes.end_input()

    def pass_on(self) -> None:
        """Copy what is there, as far as rank 0 has room for it; never wait."""
        while self.open and all(select.select([0], [self._pipes.input], [], 0)[:2]):
            if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
                return  # in the background, where the terminal's input is for somebody else
            data = os.read(0, select.PIPE_BUF)
            if data:
                os.write(self._pipes.input, data)
            else:
                self.open = False
                self._pipes.end_input()


def guard_command(mpirun: int) -> list[str]:
    """The guard of the process `mpirun`; it reads process ids, then "done", from its stdin."""
    return ["/bin/sh", "-c", _GUARD, "horovodrun-guard", str(mpirun)]


def _allow_open_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count <= (hard if hard != resource.RLIM_INFINITY else count):
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
