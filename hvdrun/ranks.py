"""The two fixed shell scripts around a job. No text of the user's is ever part of them.

A job has a folder in memory with named pipes. Every rank on this machine starts as RANK. It opens
its pipes, reports its process id, and becomes the user's program by `exec`: no extra process, and a
millisecond or two of start-up. On another machine it only becomes the program, and its output comes
through mpirun. The pipes' names tell this run of this machine from all others, in case the folder
is one that several machines share. A shell hands on no variable whose name it could not write, so
the program may stand behind so many words of `env` that set those on this machine.

GUARD ends the job, once the launcher closes the guard's input or is killed: it leaves no process of
this machine's part and no folder. Until then it reads the ranks' process ids, or "kill".
"""

from collections.abc import Mapping

from hvdlite.runtime.launchers import RANK_VARIABLES, REPORT

_RANK = "".join(f"${{{name}:-" for name in RANK_VARIABLES) + "}" * len(RANK_VARIABLES)
RANK = f"""
folder=$1 count=$2; shift 2
rank={_RANK}
read -r boot </proc/sys/kernel/random/boot_id
pipe=$folder/$boot.$rank report=$folder/$boot.report
[ -p "$pipe.stdout" ] || {{ shift "$count"; exec "$@"; }}
[ -p "$pipe.stdin" ] && exec <"$pipe.stdin" || exec </dev/null
exec >"$pipe.stdout" 2>"$pipe.stderr"
echo "$rank $$" >"$report"
export {REPORT}="$report"
exec "$@"
"""

GUARD = """
mpirun=$1 folder=$2 ranks=
runs() { [ -e "/proc/$mpirun/exe" ]; }
wait_for_end() { for tick in $1; do runs || break; sleep 0.2; done; }
kill_ranks() {  # Open MPI gives each a process group; others don't
  for pid in $ranks; do kill -s KILL -- "-$pid"; runs && kill -s KILL "$pid"; done
}
while read -r word; do
  [ "$word" = kill ] && kill_ranks || ranks="$ranks $word"
done
kill -s TERM "$mpirun"
wait_for_end "1 2 3 4 5 6 7 8 9 10"
kill_ranks
wait_for_end "1 2 3 4 5"
kill -s KILL "$mpirun"
rm -rf "$folder"
"""


def rank_words(folder: str, environment: Mapping[str, str]) -> list[str]:
    """The words before the user's command with which each rank starts."""
    odd = [f"{name}={value}" for name, value in environment.items() if not name.isidentifier()]
    words = ["env", *odd] if odd else []
    return ["/bin/sh", "-c", RANK, "rank", folder, str(len(words)), *words]
