"""`run_command`: from a command and a number of ranks to the exit code."""

from __future__ import annotations

import os
import shlex

from hvdlite.launch import slurm
from hvdlite.launch.errors import LaunchError, say
from hvdlite.launch.hosts import THIS_MACHINE, assign, check_reachable, parse_hosts, read_hostfile
from hvdlite.launch.job import Job
from hvdlite.launch.mpi import command_line, exported, find_mpi, job_environment
from hvdlite.launch.program import check_command


def run_command(
    command: list[str],
    np: int,
    *,
    hosts: str | None = None,
    hostfile: str | None = None,
    env: dict[str, str] | None = None,
    output_folder: str | None = None,
    timestamps: bool = False,
    mpi_args: str = "",
    binding_args: str = "",
    tcp: bool = False,
    nics: list[str] | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    start_timeout: float = 30,
    verbose: bool = False,
    stdout: int = 1,
    stderr: int = 2,
) -> int:
    """Run `command` as `np` ranks and return the job's exit code.

    The code is 0 if all ranks succeed, else that of the first rank to fail (128 + N if signal N
    killed it). `env` is the ranks' whole environment (default: this process's), `output_folder`
    gets a copy of each rank's output, `start_timeout` is the seconds that other hosts have to
    answer, `stdout` and `stderr` are file descriptors for the tagged output; the other arguments
    are horovodrun's options. Raises LaunchError, before any rank starts, if the job can't start.
    """
    environment = dict(os.environ if env is None else env)
    slurm.check_step(environment, np)
    if np < 1:
        raise LaunchError(f"{np} processes can't be started; ask for one or more")
    if not command:
        raise LaunchError("no command; write it at the end: horovodrun -np 2 python train.py")
    placed = _place(hosts, hostfile, np, environment)
    remote = [name for name, _ in placed if name != THIS_MACHINE]
    if len(remote) < len(placed):
        check_command(command, environment)
    mpi = find_mpi(environment)
    ssh_options = ["-p", str(ssh_port)] if ssh_port else []
    ssh_options += ["-i", ssh_identity_file] if ssh_identity_file else []
    if remote and "SLURM_JOB_ID" not in environment:  # Slurm starts ranks without ssh
        check_reachable(remote, ssh_options, start_timeout)
    environment = job_environment(mpi, environment, here=not remote)
    if nics:
        environment.setdefault("NCCL_SOCKET_IFNAME", ",".join(nics))
    if tcp:
        environment.setdefault("NCCL_IB_DISABLE", "1")
    own_name = os.uname().nodename  # what the other hosts call this one
    line = command_line(
        mpi,
        np,
        [(own_name if n == THIS_MACHINE else n, s) for n, s in placed] if remote else None,
        binding=_words(binding_args, "--binding-args"),
        extra=_words(mpi_args, "--mpi-args"),
        tcp=tcp,
        nics=nics or [],
        ssh_options=ssh_options if remote else [],
        export=exported(environment) if remote else [],
    )
    if verbose:
        say(f"MPI: {mpi.family}, version {mpi.version}")
        say("ranks: " + ", ".join(f"{slots} on {name}" for name, slots in placed))
        if "OMPI_ALLOW_RUN_AS_ROOT" in environment:
            say("running as root, so OMPI_ALLOW_RUN_AS_ROOT=1 is set for Open MPI")
        say("command: " + shlex.join([*line, *command]))
    copies = _open_copies(output_folder, np) if output_folder else {}
    try:
        return Job(np, copies, timestamps, stdout, stderr).run(line, command, environment)
    finally:
        for fd in copies.values():
            os.close(fd)


def _place(
    hosts: str | None, hostfile: str | None, np: int, environment: dict[str, str]
) -> list[tuple[str, int]]:
    """How many ranks each host gets."""
    if hosts is not None:
        return assign(parse_hosts(hosts), np, f"-H {hosts}")
    if hostfile is not None:
        return assign(read_hostfile(hostfile), np, f"host file {hostfile}")
    allocated = slurm.allocated_hosts(environment) or [(THIS_MACHINE, np)]
    if sum(tasks for _, tasks in allocated) < np:
        allocated = [(name, None) for name, _ in allocated]  # share them as evenly as can be
    return assign(allocated, np, "the Slurm allocation")


def _words(text: str, option: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise LaunchError(f"can't read {option} {text!r}: {error}") from None


def _open_copies(folder: str, np: int) -> dict[tuple[int, str], int]:
    """Open DIR/rank.N/stdout and stderr; N is padded with zeros, so that the names sort well."""
    copies: dict[tuple[int, str], int] = {}
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        for rank in range(np):
            path = os.path.join(folder, f"rank.{rank:0{len(str(np - 1))}}")
            os.makedirs(path, exist_ok=True)
            for name in ("stdout", "stderr"):
                copies[rank, name] = os.open(os.path.join(path, name), flags, 0o666)
    except OSError as error:
        for fd in copies.values():
            os.close(fd)
        raise LaunchError(f"can't write to --output-filename {folder}: {error.strerror}") from None
    return copies
