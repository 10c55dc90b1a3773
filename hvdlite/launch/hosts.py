"""Which hosts get how many ranks: -H, --hostfile, this machine's own names, hosts that answer.

A name of this machine (localhost, 127.0.0.1, its short or full host name, any address of its own)
never needs ssh, and several of them are one host with their slots added up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from hvdlite.launch.errors import LaunchError

THIS_MACHINE = "localhost"
_SSH_ANSWERS = (  # what ssh writes, and what that means for the user
    ("Could not resolve", "its name is not known (is it spelt right?)"),
    ("Host key verification failed", "its host key is not known here; run `ssh {host}` once"),
    ("Permission denied", "it refused the key; `ssh {host}` must work without a password"),
    ("Connection refused", "it did not answer (no ssh server on that port)"),
    ("timed out", "it did not answer"),
    ("No route", "it did not answer (no route to it)"),
    ("unreachable", "it did not answer (network unreachable)"),
)


def parse_hosts(text: str) -> list[tuple[str, int | None]]:
    """Read "a:2,b:2"; blanks also separate, and a host without a count has None."""
    hosts = [_parse_host(item, item, "-H") for item in re.split(r"[,\s]+", text) if item]
    if not hosts:
        raise LaunchError("-H names no host; write it as -H host1:2,host2:2")
    return hosts


def read_hostfile(path: str) -> list[tuple[str, int | None]]:
    """Read a host file: a line each of "HOST slots=N" or "HOST:N"; # starts a comment."""
    hosts = []
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise LaunchError(f"can't read host file {path}: {reason}") from None
    for number, line in enumerate(lines, 1):
        words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        if not words:
            continue
        slots = [w.partition("=")[2] for w in words[1:] if w.startswith("slots=")]
        item = f"{words[0]}:{slots[-1]}" if slots else words[0]
        hosts.append(_parse_host(item, line.strip(), f"{path}, line {number}"))
    if not hosts:
        raise LaunchError(f"host file {path} names no host; write lines like: host1 slots=2")
    return hosts


def _parse_host(item: str, seen: str, where: str) -> tuple[str, int | None]:
    name, v6 = r"\w[\w.-]*", r"[0-9a-fA-F:]*::[0-9a-fA-F:]*"
    match = re.fullmatch(rf"({name}|\[[0-9a-fA-F:]+\])(?::(\d+))?|({v6})", item)
    if not match:
        raise LaunchError(f"{where}: can't read {seen!r}; write HOST:SLOTS, for example node1:2")
    slots = match[2] and int(match[2])
    if slots == 0:
        raise LaunchError(f"{where}: {seen!r} gives 0 slots, so no rank can run there; leave the "
                          f"host out, or write {match[1]}:1 or more")  # fmt: skip
    return (match[1] or match[3]).strip("[]"), slots


def assign(hosts: list[tuple[str, int | None]], np: int, source: str) -> list[tuple[str, int]]:
    """How many of the `np` ranks each host gets; raise LaunchError if there are too few slots.

    Slots fill in the order given. Hosts without a count share what the others leave.
    """
    local = local_names(name for name, _ in hosts)
    merged: dict[str, int | None] = {}
    for name, slots in hosts:
        name = THIS_MACHINE if name in local else name
        seen = merged.get(name, 0)
        merged[name] = None if slots is None or seen is None else seen + slots
    open_hosts = [name for name, slots in merged.items() if slots is None]
    rest = max(0, np - sum(slots or 0 for slots in merged.values()))
    for i, name in enumerate(open_hosts):
        merged[name] = rest // len(open_hosts) + (i < rest % len(open_hosts))
    total = sum(merged.values())
    if total < np:
        seen = ", ".join(f"{name}:{slots}" for name, slots in merged.items())
        first = next(iter(merged))
        raise LaunchError(
            f"-np {np} needs {np} slots, but {source} gives {total} ({seen}); "
            f"raise a count, for example {first}:{merged[first] + np - total}"
        )
    result, left = [], np
    for name, slots in merged.items():
        if min(slots, left):
            result.append((name, min(slots, left)))
            left -= min(slots, left)
    return result


def local_names(names: Iterable[str]) -> set[str]:
    """Those of `names` that mean this machine."""
    names = set(names)
    own = {"localhost", "::1", os.uname().nodename, os.uname().nodename.partition(".")[0]}
    found = {n for n in names if n in own or n.startswith("127.")}
    if found == names:
        return found
    import psutil

    cards = psutil.net_if_addrs().values()
    addresses = {address.address for card in cards for address in card}
    return found | {name for name in names if addresses & _addresses(name)}


def _addresses(name: str) -> set[str]:
    """The addresses that `name` resolves to; none if it does not."""
    import socket

    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError:
        return set()


def check_reachable(hosts: list[str], ssh_options: list[str], seconds: float) -> None:
    """Log in to all `hosts` at once, without a question; raise LaunchError naming those that fail.

    `seconds` bounds the whole check.
    """
    import subprocess
    import time

    end = time.monotonic() + seconds
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, int(seconds))}", *ssh_options]
    asked = {}
    try:
        for host in hosts:
            asked[host] = subprocess.Popen(
                ["ssh", *options, host, "true"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        problems = []
        for host, process in asked.items():
            try:
                text = process.communicate(timeout=max(0.1, end - time.monotonic()))[1]
                if process.returncode:
                    problems.append(f"{host}: {_explain(host, text.decode(errors='replace'))}")
            except subprocess.TimeoutExpired:
                problems.append(f"{host}: it did not answer within {seconds:g} s")
    except FileNotFoundError:
        raise LaunchError(
            f"other hosts ({', '.join(hosts)}) need the program `ssh`, which is not installed"
        ) from None
    finally:
        for process in asked.values():
            if process.poll() is None:
                process.kill()
                process.wait()
            process.stderr.close()
    if problems:
        raise LaunchError("can't start ranks on " + "; ".join(problems))


def _explain(host: str, text: str) -> str:
    for words, meaning in _SSH_ANSWERS:
        if words in text:
            return meaning.format(host=host)
    lines = text.strip().splitlines()
    return f"ssh failed: {lines[-1]}" if lines else "ssh failed without a word"
