"""Several hosts on one Linux machine, to try out what happens between hosts.

    python tools/hosts.py horovodrun -np 4 -H a:2,b:2 python train.py    # as root

Each host is a process with namespaces of its own: name, network card, /dev/shm, process numbers,
and an ssh server that lets its neighbours in without a question. They share the files, as the hosts
of a cluster do, and a switch of their own, to which nothing else is connected. Beside its card each
has a `docker0` with the same address as all others, which looks usable and leads nowhere.

Nothing outside the namespaces is changed. They end with this process, however it ends.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

NETWORK = "10.77.0"  # the first host is 10.77.0.1
_SETUP = """
set -e
mount -t proc proc /proc
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir /run/sshd
mount -t tmpfs tmpfs /etc/ssh
cp -p {folder}/* /etc/ssh
mount --bind /etc/ssh/hosts /etc/hosts
mount --bind /etc/ssh/nsswitch.conf /etc/nsswitch.conf
hostname {name}
ip link set lo up
ip link add docker0 type bridge
ip addr add 172.17.0.1/16 dev docker0
ip link set docker0 up
/usr/sbin/sshd -E /run/sshd.log
"""
# Linux itself clears up after those whose parent has gone, as nobody waits for them.
_WAIT = "echo up; exec env --ignore-signal=CHLD cat"
_SSHD = """
HostKey /etc/ssh/host_key
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
AuthorizedKeysFile /etc/ssh/authorized_keys
SetEnv TMPDIR=/dev/shm
"""
_SSH = """
IdentityFile /etc/ssh/user_key
IdentitiesOnly yes
GlobalKnownHostsFile /etc/ssh/known_hosts
UserKnownHostsFile /dev/null
"""


class Hosts:
    """A context manager; `with Hosts(("a", "b")) as hosts: hosts.run("a", "ping", "-c1", "b")`.

    Args:
        names: the hosts' names.
        mbit: what each network card sends, in Mbit/s; None for as fast as the machine can.
    """

    def __init__(self, names: Sequence[str] = ("a", "b"), mbit: int | None = None) -> None:
        self.names, self.mbit = names, mbit
        self.addresses = {name: f"{NETWORK}.{i}" for i, name in enumerate(names, 1)}
        self._nodes: dict[str, subprocess.Popen] = {}

    def __enter__(self) -> "Hosts":
        try:
            with tempfile.TemporaryDirectory(prefix="hosts-") as folder:
                self._write_files(Path(folder))
                self._start("switch", "ip link add br0 type bridge && ip link set br0 up")
                for name in self.names:
                    self._start(name, _SETUP.format(name=name, folder=folder))
                    self._connect(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._nodes.values():
            node.stdin.close()  # its first process ends, and Linux ends all others with it
        for node in self._nodes.values():
            node.wait()

    def enter(self, host: str) -> list[str]:
        """The words that start a program on a host, to be put in front of its own."""
        child = Path(f"/proc/{self._nodes[host].pid}/task/{self._nodes[host].pid}/children")
        inside = child.read_text().split()[0]
        return ["nsenter", "-t", inside, "-n", "-u", "-m", "-i", "-p", f"--wdns={os.getcwd()}"]

    def run(self, host: str, *words: str) -> str:
        """The output of a program on a host; raises CalledProcessError if it fails."""
        return subprocess.run(
            [*self.enter(host), *words], check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def _write_files(self, folder: Path) -> None:
        for key in ("host_key", "user_key"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(words, check=True)
        pairs = [f"{address} {name}" for name, address in self.addresses.items()]
        key = (folder / "host_key.pub").read_text()
        known = ",".join([*self.names, *self.addresses.values()])
        files = {
            "hosts": "\n".join(["127.0.0.1 localhost", *pairs, ""]),
            "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\n",
            "known_hosts": f"{known} {key}",
            "authorized_keys": (folder / "user_key.pub").read_text(),
            "ssh_config": _SSH,
            "sshd_config": _SSHD,
        }
        for name, text in files.items():
            (folder / name).write_text(text)

    def _start(self, name: str, setup: str) -> None:
        """Start a host's first process, which does the setup and ends with its input."""
        spaces = ["--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child"]
        node = self._nodes[name] = subprocess.Popen(
            ["unshare", *spaces, "/bin/sh", "-c", f"{setup}\n{_WAIT}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        if node.stdout.readline() != b"up\n":
            raise RuntimeError(f"host {name} does not start; see above (are you root?)")

    def _connect(self, name: str) -> None:
        """A cable from the host to the switch."""
        here, switch = self.enter(name)[2], self.enter("switch")[2]
        cable = ["ip", "link", "add", "eth0", "netns", here, "type", "veth", "peer", "name"]
        subprocess.run([*cable, name, "netns", switch], check=True)
        self.run("switch", "ip", "link", "set", "dev", name, "master", "br0", "up")
        self.run(name, "ip", "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
        self.run(name, "ip", "link", "set", "eth0", "up")
        if self.mbit:
            shape = f"tc qdisc add dev eth0 root tbf rate {self.mbit}mbit burst 256kb latency 50ms"
            self.run(name, *shape.split())


def main() -> int:
    """Make two hosts, run the command on the first one, and return its exit code."""
    if os.geteuid():
        sys.exit(
            "tools/hosts.py: only root may make hosts; write "
            'sudo -E env PATH="$PATH" python tools/hosts.py ...'
        )
    with Hosts() as hosts:
        return subprocess.call([*hosts.enter("a"), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
