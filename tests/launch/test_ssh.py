"""Two hosts, each with its own network card, name and memory, that know each other by ssh."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hvdrun.remote import Host, common_networks
from tools.hosts import Hosts

REPOSITORY = Path(__file__).resolve().parents[2]
# Every rank says where it is, and how the bytes of an allreduce went.
WHERE = """
import os, sys
import numpy as np
import hvdlite as hvd
from hvdlite import calls, testing

hvd.init()
array = np.full(100_000, hvd.rank() + 1.0)
calls.allreduce([array], [array], op=1).wait()
cards = os.environ.get("OMPI_MCA_btl_tcp_if_include")
sys.stdout.write(
    f"{hvd.rank()} of {hvd.size()}, {hvd.local_rank()} of {hvd.local_size()}, "
    f"{hvd.cross_rank()} of {hvd.cross_size()} on {os.uname().nodename}, "
    f"{testing.collectives().name}: {array.min():g} {array.max():g}, {cards}\\n"
)
"""


@pytest.fixture(scope="module")
def hosts():
    if os.geteuid() or not all(map(shutil.which, ("ip", "nsenter", "ssh-keygen", "sshd"))):
        pytest.skip("needs root, iproute2, openssh-server and openssh-client")
    with Hosts(("a", "b")) as both:
        yield both
        for name in both.names:  # neither a daemon of MPI nor a file of its own is left
            running = both.run(name, "sh", "-c", "cat /proc/[0-9]*/comm").split()
            assert set(running) <= {"cat", "sh", "sshd"}
            assert both.run(name, "ls", "/dev/shm") == ""


@pytest.fixture
def on_a(hosts, horovodrun):
    """`horovodrun` on host a."""
    horovodrun.command = [*hosts.enter("a"), *horovodrun.command]
    return horovodrun


def lines(result) -> list[str]:
    assert result.returncode == 0, result.err
    return sorted(line.partition(">:")[2] for line in result.out.splitlines())


NETWORK = "10.77.0.0/24"


def test_ranks_of_two_hosts_add_up(on_a):
    """Not docker0, which both have; and in two levels, as each host has several ranks."""
    result = on_a.python(4, WHERE, "-H", "a:2,b:2")
    assert lines(result) == [
        f"0 of 4, 0 of 2, 0 of 2 on a, hierarchical: 10 10, {NETWORK}",
        f"1 of 4, 1 of 2, 0 of 2 on a, hierarchical: 10 10, {NETWORK}",
        f"2 of 4, 0 of 2, 1 of 2 on b, hierarchical: 10 10, {NETWORK}",
        f"3 of 4, 1 of 2, 1 of 2 on b, hierarchical: 10 10, {NETWORK}",
    ]


def test_what_a_killed_mpirun_left_under_the_same_process_id_does_no_harm(hosts, on_a):
    """Process ids begin anew on each host, and all have one /tmp: a daemon of PMIx that finds a
    file with its own id there ends with "the PMIx server's listener thread failed to start"."""
    folder = on_a.environment["TMPDIR"]
    mpirun = ["mpirun", "--allow-run-as-root", "-n", "1", "sh", "-c", "kill -9 $PPID"]
    subprocess.run([*hosts.enter("a"), *mpirun], env=on_a.environment, timeout=60)
    left = [path for path in Path(folder).rglob("*.tool.*") if path.name.split(".")[-1].isdigit()]
    assert left, "mpirun's own files have other names now"
    number = left[0].name.split(".")[-1]
    for pid in map(str, range(1, 2000)):
        same = str(left[0]).replace(number, pid)
        Path(same).parent.mkdir(parents=True, exist_ok=True)
        Path(same).touch()
    assert len(lines(on_a.python(2, WHERE, "-H", "a:1,b:1"))) == 2
    for path in left[0].parents[1].iterdir():
        shutil.rmtree(path)


def test_a_host_file_with_uneven_hosts(on_a, tmp_path):
    (tmp_path / "hosts").write_text("b slots=2\na slots=1\n")
    result = on_a.python(3, WHERE, "--hostfile", tmp_path / "hosts", "--network-interface", "eth0")
    assert lines(result) == [
        "0 of 3, 0 of 2, 0 of 2 on b, hierarchical: 6 6, eth0",
        "1 of 3, 1 of 2, 0 of 1 on b, hierarchical: 6 6, eth0",
        "2 of 3, 0 of 1, 1 of 2 on a, hierarchical: 6 6, eth0",
    ]


def test_a_rank_that_fails_on_the_other_host_ends_the_job(on_a):
    program = "import os, time; os.uname().nodename == 'b' and os._exit(7); time.sleep(100)"
    result = on_a.python(2, program, "-H", "a:1,b:1")
    assert result.returncode == 7
    assert "rank 1 exited with code 7; the other ranks were stopped." in result.err


FUNCTION = """
import os, sys
import hvdlite

try:
    print(hvdlite.run(lambda: os.uname().nodename, np=2, hosts=sys.argv[1]))
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "places, shared, says",
    [
        ("b:2", True, "['b', 'b']"),
        ("b:1,a:1", False, "['b', 'a']"),
        ("b:2", False, "hvdlite.run ended with exit code 1"),
    ],
)
def test_a_function_from_a_host_that_is_not_the_first(hosts, on_a, places, shared, says):
    """It comes from a folder of the calling host, and its results go there."""
    memory = {} if shared else {"TMPDIR": "/dev/shm"}  # which each host has for itself
    done = subprocess.run(
        [*hosts.enter("a"), sys.executable, "-c", FUNCTION, places],
        env=on_a.environment | memory,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == says, done
    if says.startswith("hvdlite.run"):
        assert "no rank sees /dev/shm/hvdlite-run-" in done.stderr, done
        assert "of the calling machine; name localhost in hosts=" in done.stderr, done


@pytest.fixture
def one_line_about(on_a, one_line):
    def check(host: str, *words: object) -> str:
        line = one_line(on_a("-np", 2, "-H", f"a:1,{host}:1", *words))
        assert line.startswith(f"horovodrun: can't start ranks on {host}: ")
        return line

    return check


def test_a_host_that_can_not_be_reached_is_named(hosts, one_line_about):
    assert "its name is not known" in one_line_about("nowhere", "true")
    assert "it did not answer (no route to it)" in one_line_about("10.77.0.9", "true")
    # Nobody answers for an address behind a host that forwards nothing.
    hosts.run("a", "ip", "route", "add", "10.78.0.0/16", "via", hosts.addresses["b"])
    assert "it did not answer" in one_line_about("10.78.0.1", "--start-timeout", 2, "true")
    assert "no ssh server on that port" in one_line_about("b", "-p", 23, "true")


def test_keys_that_do_not_fit_are_told_apart(hosts, one_line_about):
    for host, name, says in [
        ("b", "authorized_keys", "it refused the key; `ssh b` must work without a password"),
        ("a", "known_hosts", "its host key is not known here; run `ssh b` once"),
    ]:
        path = f"/etc/ssh/{name}"
        hosts.run(host, "mv", path, f"{path}.away")
        try:
            assert says in one_line_about("b", "true")
        finally:
            hosts.run(host, "mv", f"{path}.away", path)


def test_a_key_that_has_changed_and_one_that_is_not_there(hosts, one_line_about, one_line, on_a):
    other = hosts.run("a", "cat", "/etc/ssh/user_key.pub")
    new = f"b {other}"
    hosts.run(
        "a", "sh", "-c", f"mv /etc/ssh/known_hosts /tmp/known; echo '{new}' >/etc/ssh/known_hosts"
    )
    try:
        line = one_line_about("b", "true")
    finally:
        hosts.run("a", "mv", "/tmp/known", "/etc/ssh/known_hosts")
    assert "its host key is not the one that is known here" in line
    assert "ssh-keygen -R b" in line
    line = one_line(on_a("-np", 2, "-H", "a:1,b:1", "-i", "/nowhere/key", "true"))
    assert line == "horovodrun: there is no ssh key /nowhere/key (-i)\n"


def test_a_network_card_that_a_host_lacks(one_line_about):
    line = one_line_about("b", "--network-interfaces", "eth0,ib0", "true")
    assert "b: it has no network card ib0 with an IPv4 address, but lo, " in line
    assert "eth0" in line


@pytest.fixture
def walled(hosts):
    """A card on both hosts, in one network, whose packets get lost, as behind a firewall."""
    for name, own, other in [("a", "10.79.0.1", "10.79.0.2"), ("b", "10.79.0.2", "10.79.0.1")]:
        for words in (
            "link add wall0 type veth peer name wall1",
            f"addr add {own}/24 dev wall0",
            "link set wall0 up",
            "link set wall1 up",
            f"neigh add {other} lladdr 02:00:00:00:00:01 dev wall0",
        ):
            hosts.run(name, "ip", *words.split())
    yield "wall0"
    for name in hosts.names:
        hosts.run(name, "ip", "link", "del", "wall0")


def test_hosts_that_mpi_can_not_connect(on_a, walled):
    """Who waits says what to look at, and the job can be stopped."""
    program = "import hvdlite; hvdlite.init()"
    job = on_a.start(
        "-np", 2, "-H", "a:1,b:1", "--network-interfaces", walled, sys.executable, "-c", program,
        env={"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"},
    )  # fmt: skip
    try:
        told = next(line.decode() for line in job.stderr if b"has waited in init()" in line)
    finally:
        for process in on_a.processes():
            if "hvdrun" in process.cmdline() and process.pid != job.pid:  # that one is nsenter
                process.terminate()
        job.communicate(timeout=100)
    assert "the hosts don't reach each other by the network that MPI uses" in told
    assert "--network-interfaces" in told


@pytest.mark.parametrize("variable", ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS"])
def test_the_hosts_of_other_schedulers(on_a, tmp_path, variable):
    """A line for each slot, or one list; as the schedulers write them."""
    value = "a 1 b 2"
    if variable != "LSB_MCPU_HOSTS":
        value = tmp_path / "hosts"
        value.write_text("a\nb\nb\n")
    result = on_a.python(3, WHERE, env={variable: str(value)})
    assert [line.partition(",")[0] + line.partition(" on")[2][:2] for line in lines(result)] == [
        "0 of 3 a", "1 of 3 b", "2 of 3 b",
    ]  # fmt: skip


def test_two_names_of_one_host_are_told(hosts, one_line_about):
    """They would be two hosts, whose ranks share GPUs without knowing."""
    line = one_line_about("b", "-H", f"b:1,{hosts.addresses['b']}:1", "true")
    assert "b: it is 10.77.0.2, too" in line


def test_what_the_other_host_lacks_is_named(hosts, one_line_about, tmp_path):
    """Before MPI starts, as MPI would answer with a page of its own."""
    only_here = tmp_path / "here"
    only_here.mkdir()
    hosts.run("a", "mount", "-t", "tmpfs", "tmpfs", str(only_here))
    script = only_here / "train.py"
    hosts.run("a", "cp", "/bin/true", str(only_here / "program"))
    hosts.run("a", "touch", str(script))
    line = one_line_about("b", only_here / "program")
    assert f"there is no program {only_here}/program" in line
    line = one_line_about("b", sys.executable, script)
    assert f"there is no script {script}" in line


def test_another_python_on_the_other_host_is_named(hosts, one_line_about, tmp_path):
    """By what it says of itself, the version of Python or that hvdlite is missing."""
    other = tmp_path / "python"
    other.write_text(
        '#!/bin/sh\n[ "$(hostname)" = a ] || set -- -c "raise ImportError(9)"\n'
        f'exec {sys.executable} "$@"\n'
    )
    other.chmod(0o755)
    line = one_line_about("b", other, "-c", "pass")
    assert "says 'ImportError: 9', and here 'Python 3." in line


def test_only_root_makes_hosts():
    code = "import os; from tools import hosts; os.geteuid() or os.seteuid(65534); hosts.main()"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("tools/hosts.py: only root may make hosts; write sudo")
    assert done.stderr.count("\n") == 1


def test_hosts_end_with_the_program_that_made_them(hosts):
    """However it ends; here it is killed."""
    program = """
import os, time
from tools.hosts import Hosts
with Hosts(("c", "d")) as hosts:
    print(*(int(hosts.enter(name)[2]) for name in ("switch", "c", "d")), flush=True)
    time.sleep(100)
"""
    maker = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    inside = [psutil.Process(int(pid)) for pid in maker.stdout.readline().split()]
    assert len(inside) == 3
    maker.kill()
    maker.communicate()
    assert not psutil.wait_procs(inside, timeout=30)[1]


def answer(*cards: str, ssh: str = "") -> Host:
    named = [f"eth{i}={card}" for i, card in enumerate(cards)]
    return Host(ssh, " ".join(["lo=127.0.0.1/255.0.0.0", *named]))


BRIDGE = "172.17.0.1/255.255.0.0"


@pytest.mark.parametrize(
    "a, b, networks",
    [
        # nothing to choose from
        (answer("10.0.0.1/24"), answer("10.0.0.2/24"), ""),
        (answer(), answer(), ""),
        (answer("10.0.0.1/24", BRIDGE), answer("10.0.0.2/24", BRIDGE), "10.0.0.0/24"),
        (answer("10.0.0.1/24", BRIDGE), answer("10.0.0.2/24"), "10.0.0.0/24"),
        # a network of one host only, and two networks for all
        (
            answer("10.0.0.1/24", "10.0.1.1/24", "192.168.5.1/24"),
            answer("10.0.0.2/24", "10.0.1.2/24"),
            "10.0.0.0/24,10.0.1.0/24",
        ),
        # different networks, or none at all, as at some providers: where ssh has come through
        (
            answer("10.0.0.1/24", BRIDGE),
            answer("10.0.7.2/24", BRIDGE, ssh="10.0.0.1 4000 10.0.7.2 22"),
            "10.0.0.0/21",
        ),
        (
            answer("10.0.0.1/32", BRIDGE),
            answer("10.0.0.6/32", BRIDGE, ssh="10.0.0.1 4000 10.0.0.6 22"),
            "10.0.0.0/29",
        ),
        # too far apart to tell
        (
            answer("10.0.0.1/24", BRIDGE),
            answer("192.168.0.1/24", BRIDGE, ssh="10.0.0.1 4000 192.168.0.1 22"),
            "",
        ),
        (answer("10.0.0.1/24", BRIDGE), answer("10.0.7.2/24", BRIDGE, ssh="fd::1 4 fd::2 2"), ""),
    ],
)
def test_the_networks_that_all_hosts_have_in_common(a, b, networks):
    assert common_networks({"localhost": a, "b": b}, ["localhost", "b"]) == networks


ELASTIC = """
import os, sys, time
from pathlib import Path
import psutil
import hvdlite as hvd
from hvdlite.elastic.state import ObjectState, run
from hvdlite.objects import broadcast_object

hvd.init()
me, (what, done) = os.uname().nodename, sys.argv[1:]
state = ObjectState(broadcast_object, hvd.rank, sizes=[])

@run
def train(state):
    while len(state.sizes) < 8:
        first = len(state.sizes) == 3 and me == "b" and hvd.local_rank() == 0
        if first and not os.path.exists(done):
            Path(done).touch()
            exec(what)
        broadcast_object(None)
        state.sizes.append(hvd.size())
        state.commit()

train(state)
print(f"{hvd.rank()} on {me} as {os.environ['HOROVOD_HOSTNAME']}: {state.sizes}")
"""


@pytest.mark.parametrize(
    "places, what, left, says",
    [
        ("a:1,b:2", "os.kill(os.getpid(), 9)", ["0 on a as a: 1"], "rank 1 was killed"),
        ("b:1,a:2", "raise KeyError('x')", ["0 on a as a: 2", "1 on a as a: 2"], "exited with"),
        ("a:1,b:1", "psutil.Process(os.getppid()).parent().kill(); time.sleep(99)",
         ["0 on a as a: 1"], "b has gone, and rank 1"),
    ],
)  # fmt: skip
def test_an_elastic_job_goes_on_without_a_host(on_a, tmp_path, places, what, left, says):
    """By a failure of a rank, and by one of the connection to the host."""
    (tmp_path / "train.py").write_text(ELASTIC)
    np = sum(int(part[-1]) for part in places.split(","))
    words = [sys.executable, tmp_path / "train.py", what, tmp_path / "done"]
    result = on_a("-np", np, "--min-np", 1, "-H", places, *words, timeout=120)
    expected = [f"{line[:-1]}{[np] * 3 + [int(line[-1])] * 5}" for line in left]
    assert lines(result) == expected
    assert says in result.err and "b is left out" in result.err


def test_an_elastic_job_goes_on_without_hosts_that_do_not_answer(on_a, tmp_path):
    (tmp_path / "train.py").write_text(ELASTIC)
    words = [sys.executable, tmp_path / "train.py", "", tmp_path / "done"]
    options = ["-np", 1, "--min-np", 1, "-H", "a:1,nowhere:1,b:1"]
    result = on_a(*options, *words, timeout=120)
    assert lines(result) == [f"{n} on {name} as {name}: {[2] * 8}" for n, name in enumerate("ab")]
    assert "nowhere: its name is not known" in result.err and "nowhere is left out" in result.err
