"""Which hosts get how many ranks: -H, --hostfile, this machine's own names.

A name of this machine (localhost, 127.0.0.1, its short or full host name, any address of its own)
never needs ssh, and several of them are one host with their slots added up.
"""

import os
import re
import socket
from argparse import Namespace
from collections.abc import Mapping, Sequence

from hvdrun.errors import LaunchError
from hvdrun.options import read_file
from hvdrun.schedulers import Allocation, allocation

THIS_MACHINE = "localhost"
Hosts = Sequence[tuple[str, int | None]]  # names, and how many ranks each may or shall have


def named(args: Namespace, np: int, environment: Mapping[str, str]) -> tuple[Hosts, str]:
    """The hosts by horovodrun's options or a scheduler's list, and which of these it is."""
    if args.hosts is not None:
        return parse_hosts(args.hosts), f"-H {args.hosts}"
    if args.hostfile is not None:
        return read_hostfile(args.hostfile), f"host file {args.hostfile}"
    scheduler, hosts = allocation(environment) or Allocation("this machine", [(THIS_MACHINE, np)])
    return hosts, f"the allocation of {scheduler}"


def place(args: Namespace, np: int, environment: Mapping[str, str]) -> Hosts:
    """The ranks of each host, `np` in all."""
    hosts, source = named(args, np, environment)
    scheduled = args.hosts is None and args.hostfile is None
    if scheduled and sum(slots for _, slots in hosts) < np:
        hosts = [(name, None) for name, _ in hosts]  # share them as evenly as can be
    return assign(hosts, np, source)


def parse_hosts(text: str) -> Hosts:
    """Read "a:2,b:2"; blanks also separate, and a host without a count has None."""
    hosts = [_parse_host(item, item, "-H") for item in re.split(r"[,\s]+", text) if item]
    if not hosts:
        raise LaunchError("-H names no host; write it as -H host1:2,host2:2")
    return hosts


def read_hostfile(path: str) -> Hosts:
    """Read a host file: a line each of "HOST slots=N" or "HOST:N"; # starts a comment."""
    hosts = []
    for number, line in enumerate(read_file(path, "host file").splitlines(), 1):
        words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        slots = [f":{w.partition('=')[2]}" for w in words[1:] if w.startswith("slots=")]
        if words:
            item = "".join([words[0], *slots[-1:]])
            hosts.append(_parse_host(item, line.strip(), f"{path}, line {number}"))
    if not hosts:
        raise LaunchError(f"host file {path} names no host; write lines like: host1 slots=2")
    return hosts


def _parse_host(item: str, seen: str, where: str) -> tuple[str, int | None]:
    name, v6 = r"\w[\w.-]*", r"[0-9a-fA-F:]*::[0-9a-fA-F:]*"
    match = re.fullmatch(rf"({name}|\[[0-9a-fA-F:]+\])(?::(\d+))?|({v6})", item)
    if not match and "@" in item:
        user, _, host = item.partition("@")
        host = host.partition(":")[0]
        raise LaunchError(f"{where}: {seen!r} names a user; leave {user}@ out, and write into "
                          f"~/.ssh/config: Host {host} User {user}")  # fmt: skip
    if not match:
        raise LaunchError(f"{where}: can't read {seen!r}; write HOST:SLOTS, for example node1:2")
    slots = match[2] and int(match[2])
    if slots == 0:
        raise LaunchError(f"{where}: {seen!r} gives 0 slots, so no rank can run there; leave the "
                          f"host out, or write {match[1]}:1 or more")  # fmt: skip
    return (match[1] or match[3]).strip("[]"), slots


def assign(hosts: Hosts, np: int, source: str) -> list[tuple[str, int]]:
    """How many of the `np` ranks each host gets; raise LaunchError if there are too few slots.

    Slots fill in the order given. Hosts without a count share what the others leave.
    """
    merged: dict[str, int | None] = {}
    for name, slots in hosts:
        name = THIS_MACHINE if is_local(name) else name
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
    left = np
    for name, slots in merged.items():
        merged[name] = min(slots, left)
        left -= merged[name]
    return [(name, ranks) for name, ranks in merged.items() if ranks]


def is_local(name: str) -> bool:
    """Whether `name` means this machine."""
    own = os.uname().nodename
    if name in (THIS_MACHINE, "::1", own, own.partition(".")[0]) or name.startswith("127."):
        return True
    import psutil  # only here, as it takes longer than all the rest

    try:
        meant = {entry[4][0] for entry in socket.getaddrinfo(name, None)}
    except OSError:  # there is no such name
        return False
    cards = psutil.net_if_addrs().values()
    return any(address.address in meant for card in cards for address in card)


def ssh_options(args: Namespace) -> list[str]:
    """What ssh needs to know to reach the other hosts."""
    port = ["-p", str(args.ssh_port)] if args.ssh_port else []
    return [*port, "-i", args.ssh_identity_file] if args.ssh_identity_file else port
