"""What the launcher asks the other hosts before it starts: are they there, and fit for the job?

MPI would answer each of these mistakes with a page of its own, or not at all.
"""

import ipaddress
import os
import shlex
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from hvdrun.errors import LaunchError
from hvdrun.hosts import THIS_MACHINE, ssh_options

_SSH_ANSWERS = {  # what ssh writes, and what that means for the user
    "Could not resolve": "its name is not known (is it spelt right?)",
    "HOST IDENTIFICATION HAS CHANGED": "its host key is not the one that is known here; if that is "
    "meant, remove the old one: ssh-keygen -R {host}",
    "Host key verification failed": "its host key is not known here; run `ssh {host}` once",
    "Permission denied": "it refused the key; `ssh {host}` must work without a password",
    "Connection refused": "it did not answer (no ssh server on that port)",
    "timed out": "it did not answer",
    "No route": "it did not answer (no route to it)",
    "unreachable": "it did not answer (network unreachable)",
}
# Runs on every host, on this one too. Each line for us is marked, as a shell's start files may
# print lines of their own.
_SCRIPT = """
fail() { echo "hvdlite problem $1"; exit; }
[ "$host" = localhost ] || echo "hvdlite ssh $SSH_CONNECTION"
echo "hvdlite machine $(uname -n) $(cat /proc/sys/kernel/random/boot_id)"
cd "$folder" 2>/dev/null || cd
command -v "$program" >/dev/null || fail "there is no program $program"
[ -z "$script" ] || [ -e "$script" ] || fail "there is no script $script (looked in $PWD)"
[ -x "$mpirun" ] || command -v "${mpirun##*/}" >/dev/null || fail "there is no MPI, such as $mpirun"
echo "hvdlite cards $("$python" -c "$cards" 2>/dev/null)"
[ -z "$versions" ] || echo "hvdlite versions $("$program" -c "$versions" 2>&1 | tail -n 1)"
"""
_TRAVELS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
_CARDS = (
    "import psutil; print(*(f'{name}={c.address}/{c.netmask or 32}' "
    "for name, cards in psutil.net_if_addrs().items() for c in cards if c.family == 2))"
)
_VERSIONS = (
    "import sys, hvdlite; "
    "print('Python %d.%d' % sys.version_info[:2], 'with hvdlite', hvdlite.__version__)"
)


class Host(NamedTuple):
    """What a host has answered. `ssh` are both ends of the connection, `cards` its network cards
    as "eth0=10.0.0.1/24 ...", and `machine` is the same where two hosts are one."""

    ssh: str = ""
    cards: str = ""
    versions: str = ""
    problem: str = ""
    machine: str = ""


def ask_hosts(
    remote: Sequence[str],
    args: Namespace,
    environment: Mapping[str, str],
    command: Sequence[str],
    script: str | None,
    mpirun: str,
) -> dict[str, Host]:
    """Log in to all `remote` hosts at once, without a question; returns what they and this machine
    answer.

    That is a problem for those that can't be reached, that lack the program, its `script`, MPI or a
    network card that was asked for, or whose Python is another. horovodrun's option
    --start-timeout bounds the whole. Raises LaunchError if the ssh key is not there.
    """
    if args.ssh_identity_file and not os.path.isfile(args.ssh_identity_file):
        raise LaunchError(f"there is no ssh key {args.ssh_identity_file} (-i)")
    values = {
        "folder": os.getcwd(), "program": command[0], "script": script or "", "mpirun": mpirun,
        "python": sys.executable, "cards": _CARDS,
        "versions": _VERSIONS if os.path.basename(command[0]).startswith("python") else "",
    }  # fmt: skip
    values |= {name: environment[name] for name in _TRAVELS if name in environment}
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    text = "\n".join([*lines, f"export {' '.join(_TRAVELS)}", _SCRIPT])
    seconds = args.start_timeout
    limit = f"ConnectTimeout={max(1, min(10, int(seconds)))}"
    ssh = ["ssh", "-o", "BatchMode=yes", "-o", limit, *ssh_options(args)]

    def ask(host: str) -> Host:
        words = ["/bin/sh", "-s"] if host == THIS_MACHINE else [*ssh, host, "/bin/sh -s"]
        try:
            done = subprocess.run(
                words, input=f"host={host}\n{text}", capture_output=True, text=True,
                errors="replace", timeout=seconds,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Host(problem=f"it did not answer within {seconds:g} s")
        marked = [line.split(" ", 2) for line in done.stdout.splitlines()]
        answers = {line[1]: line[2] for line in marked if line[0] == "hvdlite" and len(line) == 3}
        if answers or not done.returncode:
            return Host(**answers)
        said = done.stderr.strip() or "it ended without a word"
        known = (meaning for words, meaning in _SSH_ANSWERS.items() if words in said)
        problem = next(known, f"ssh failed: {said.splitlines()[-1]}")
        return Host(problem=problem.format(host=host))

    names = [THIS_MACHINE, *remote]
    try:
        with ThreadPoolExecutor(len(names)) as pool:
            answers = dict(zip(names, pool.map(ask, names), strict=True))
    except FileNotFoundError:
        raise LaunchError(
            f"other hosts ({', '.join(remote)}) need the program `ssh`, which is not installed"
        ) from None
    ours = answers[THIS_MACHINE].versions or answers[remote[0]].versions
    same = {answers[name].machine: name for name in remote}
    for name in remote:
        host, problem = answers[name], ""
        if host.problem:
            continue
        if same[host.machine] != name:
            problem = f"it is {same[host.machine]}, too; give only one of its names"
        elif host.versions != ours:
            problem = (f"its {command[0]} says {host.versions!r}, and here {ours!r}; all hosts "
                       "need the same")  # fmt: skip
        elif lost := _lost_cards(host, args.nics):
            problem = lost
        answers[name] = host._replace(problem=problem)
    return answers


def _lost_cards(host: Host, wanted: Sequence[str]) -> str:
    """What to say of a host that lacks a wanted network card, "" if it has them or can't tell."""
    there = dict.fromkeys(card.partition("=")[0] for card in host.cards.split())
    # "10.0.0.0/24" is a network, which MPI looks up by itself.
    lost = [name for name in wanted if "/" not in name and name not in there]
    if not there or not lost:
        return ""
    return f"it has no network card {', '.join(lost)} with an IPv4 address, but {', '.join(there)}"


def common_networks(answers: Mapping[str, Host], names: Sequence[str]) -> str:
    """The networks by which the hosts with these names reach each other, such as "10.0.0.0/24".

    Returns "" if MPI need not be told, or can't be. A bridge for containers or virtual machines has
    the same address on every host, and MPI would take it for a way to the others. A network counts
    if all hosts have addresses of their own in it. Where there is none, as the hosts are in
    different networks, it is the smallest that holds all addresses by which ssh has reached them.
    """
    hosts = [answers[name] for name in names]
    words = [[card.partition("=")[2] for card in host.cards.split()] for host in hosts]
    cards = [set(map(ipaddress.ip_interface, each)) for each in words]
    cards = [{card for card in each if not card.is_loopback} for each in cards]
    every = [card for each in cards for card in each]
    found = []
    for network in {card.network for card in every}:
        inside = [card for card in every if card.network == network]
        if len(set(inside)) == len(inside) and all(each.intersection(inside) for each in cards):
            found.append(network)
    if not found:
        first = 0 if THIS_MACHINE in names else 2  # "HERE PORT THERE PORT"
        ends = [end for host in hosts for end in host.ssh.split()[first::2] if ":" not in end]
        numbers = [int(ipaddress.IPv4Address(end)) for end in ends] or [0, 1 << 31]
        length = 32 - (min(numbers) ^ max(numbers)).bit_length()
        if length < 8:
            return ""
        found = [ipaddress.ip_network((min(numbers), length), strict=False)]
    if all(any(card in network for network in found) for card in every):
        return ""
    return ",".join(sorted(map(str, found)))
