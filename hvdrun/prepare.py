"""From a command and the hosts for its ranks to the words with which mpirun is started."""

import getopt
import os
import re
import shlex
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence

from hvdrun.errors import LaunchError, say
from hvdrun.hosts import THIS_MACHINE
from hvdrun.job import Job
from hvdrun.mpi import command_line, files_into, find_mpi, job_environment, memory_folder
from hvdrun.ranks import rank_words
from hvdrun.remote import Host, ask_hosts, common_networks

Placed = Sequence[tuple[str, int]]  # machines, and how many ranks each gets


class Preparation:
    """What is found out about a job before its ranks start; hosts are asked once.

    Raises LaunchError for a command that can't be meant.
    """

    def __init__(self, command: list[str], args: Namespace, environment: Mapping[str, str]):
        if not command:
            raise LaunchError("no command; write it at the end: horovodrun -np 2 python train.py")
        self.command, self.args, self.environment = command, args, environment
        self.script = script_of(command)
        if self.script == "-":
            raise LaunchError(
                f"{command[0]} would read its program from standard input, which rank 0 alone may "
                "have; write the program into a file"
            )
        self.answers: dict[str, Host] = {}

    def problems(self, names: Sequence[str]) -> dict[str, str]:
        """Find MPI and look at these hosts; returns what is wrong with those that can't be used.

        Raises LaunchError if that is this machine, or if there is no MPI.
        """
        remote = [name for name in names if name != THIS_MACHINE]
        if len(remote) < len(names):
            check_command(self.command, self.environment)
        self.mpi = find_mpi(self.environment)
        new = [name for name in remote if name not in self.answers or self.answers[name].problem]
        if new and "SLURM_JOB_ID" not in self.environment:  # Slurm starts ranks without ssh
            self.answers |= ask_hosts(
                new, self.args, self.environment, self.command, self.script, self.mpi.path
            )
        found = {name: self.answers[name].problem for name in remote if name in self.answers}
        return {name: problem for name, problem in found.items() if problem}

    def run(self, job: Job, placed: Placed, words: Sequence[str] = ()) -> int:
        """Run the job on these machines, each rank with `words` before the command; returns its
        exit code."""
        line, environment = self._line(placed)
        memory = memory_folder(environment)
        with tempfile.TemporaryDirectory("", "hvd-", memory, ignore_cleanup_errors=True) as folder:
            here = all(name == THIS_MACHINE for name, _ in placed)
            environment = files_into(folder, environment, here)
            line += [*rank_words(folder, environment), *words, *self.command]
            return job.run(line, environment, folder)

    def _line(self, placed: Placed) -> tuple[list[str], dict[str, str]]:
        """mpirun's words before those for the ranks, and its environment."""
        args, environment, mpi = self.args, dict(self.environment), self.mpi
        names = [name for name, _ in placed]
        remote = set(names) != {THIS_MACHINE}
        told = args.nics or "btl_tcp_if_" in args.mpi_args + " ".join(environment)
        networks = "" if told or not self.answers else common_networks(self.answers, names)
        if remote and networks:
            environment["OMPI_MCA_btl_tcp_if_include"] = networks
        environment = job_environment(mpi, args, environment, here=not remote)
        np = sum(slots for _, slots in placed)
        line = command_line(mpi, np, args, placed if remote else [], environment)
        if args.verbose:
            say(f"MPI: {mpi.family.name}, version {mpi.version}")
            say("networks: " + environment.get("OMPI_MCA_btl_tcp_if_include", "as MPI finds them"))
            say("ranks: " + ", ".join(f"{slots} on {name}" for name, slots in placed))
            if mpi.family.library == "Open MPI" and "OMPI_ALLOW_RUN_AS_ROOT" in environment:
                say("running as root, so OMPI_ALLOW_RUN_AS_ROOT=1 is set for Open MPI")
            say("command: " + shlex.join([*line, *self.command]))
        return line, environment


def check_command(command: list[str], environment: Mapping[str, str]) -> None:
    """Raise LaunchError if the program, or the script that Python shall run, does not exist.

    Asked before MPI starts, as MPI would answer once for each rank.
    """
    program = command[0]
    if not shutil.which(program, path=environment.get("PATH", os.defpath)):
        reason = f"there is no program {program} on this machine"
        if os.path.isdir(program):
            reason = f"{program} is a folder, not a program"
        elif program.endswith(".py") and os.path.isfile(program):
            reason = f"{program} can't be executed by itself; write: python {program}"
        elif os.path.isfile(program):
            reason = f"{program} is not executable"
        elif program in ("python", "python3"):
            reason = f"there is no {program} on PATH; this installation's is {sys.executable}"
        raise LaunchError(reason)
    script = script_of(command)
    if script is not None and not os.path.exists(script):
        raise LaunchError(f"there is no script {script} (looked in {os.getcwd()})")


def script_of(command: list[str]) -> str | None:
    """The file in `python -u FILE ...`, "-" for standard input; None for -c, -m, other programs."""
    if not re.fullmatch(r"python[\d.]*", os.path.basename(command[0])):
        return None
    short, long = "bBdEhiIOPqsSuvVxc:m:W:X:", ["check-hash-based-pycs="]
    try:
        given, rest = getopt.getopt(command[1:], short, long)
    except getopt.GetoptError:
        return None  # what stands behind -c and -m, or what Python will complain about
    if {"-c", "-m", "-h", "-V"} & dict(given).keys():
        return None
    return rest[0] if rest else "-"
