"""`run_command`: from a command and a number of ranks to the exit code."""

import getopt
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, TextIO

from hvdrun.errors import LaunchError, say
from hvdrun.hosts import THIS_MACHINE, place
from hvdrun.job import Job
from hvdrun.mpi import FOLDER_VARIABLES, command_line, find_mpi, job_environment
from hvdrun.options import complete, count_of_ranks, settings_environment
from hvdrun.ranks import rank_words
from hvdrun.remote import ask_hosts, common_networks
from hvdrun.slurm import check_step


def run_command(
    command: list[str],
    np: int | str | None,
    *,
    env: Mapping[str, str] | None = None,
    stdout: int | TextIO = 1,
    stderr: int | TextIO = 2,
    **options: Any,
) -> int:
    """Run `command` as `np` ranks and return the job's exit code.

    The code is 0 if all ranks succeed, else that of the first rank to fail (128 + N if signal N
    killed it). `env` is the ranks' environment (default: this process's), `stdout` and `stderr`
    take the tagged output; `options` are horovodrun's, by the names that `options.parse` gives
    them. Raises LaunchError, before any rank starts, if the job can't start.
    """
    args, np = complete(options), count_of_ranks(np)
    environment = {**(os.environ if env is None else env), **settings_environment(args)}
    check_step(environment, np)
    if not command:
        raise LaunchError("no command; write it at the end: horovodrun -np 2 python train.py")
    script = _script(command)
    if script == "-":
        raise LaunchError(f"{command[0]} would read its program from standard input, which rank 0 "
                          "alone may have; write the program into a file")  # fmt: skip
    placed = place(args, np, environment)
    remote = [name for name, _ in placed if name != THIS_MACHINE]
    if len(remote) < len(placed):
        check_command(command, environment)
    mpi = find_mpi(environment)
    if remote and "SLURM_JOB_ID" not in environment:  # Slurm starts ranks without ssh
        hosts = ask_hosts(remote, args, environment, command, script, mpi.path)
        told = args.nics or "btl_tcp_if_" in args.mpi_args + " ".join(environment)
        if not told and (networks := common_networks(hosts, [name for name, _ in placed])):
            environment["OMPI_MCA_btl_tcp_if_include"] = networks
    environment = job_environment(mpi, args, environment, here=not remote)
    line = command_line(mpi, np, args, placed if remote else [], environment)
    if args.verbose:
        say(f"MPI: {mpi.family.name}, version {mpi.version}")
        say("networks: " + environment.get("OMPI_MCA_btl_tcp_if_include", "as MPI finds them"))
        say("ranks: " + ", ".join(f"{slots} on {name}" for name, slots in placed))
        if mpi.family.library == "Open MPI" and "OMPI_ALLOW_RUN_AS_ROOT" in environment:
            say("running as root, so OMPI_ALLOW_RUN_AS_ROOT=1 is set for Open MPI")
        say("command: " + shlex.join([*line, *command]))
    # Where somebody has said where MPI's memory shall be, ours is there too.
    memory = environment.get(FOLDER_VARIABLES[0], "/dev/shm")
    memory = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory("", "hvd-", memory, ignore_cleanup_errors=True) as folder:
        if not remote:  # then mpirun's own files can lie there too
            environment = dict.fromkeys(FOLDER_VARIABLES, folder) | environment
        line += [*rank_words(folder, environment), *command]
        return Job(np, args, stdout, stderr).run(line, environment, folder)


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
    script = _script(command)
    if script is not None and not os.path.exists(script):
        raise LaunchError(f"there is no script {script} (looked in {os.getcwd()})")


def _script(command: list[str]) -> str | None:
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
