"""-H and --hostfile in all their forms, and hosts that can't be reached."""

import os
import socket
import sys

import pytest

from hvdrun import LaunchError
from hvdrun.hosts import assign, parse_hosts, read_hostfile

RANKS = (
    "import os; name = 'OMPI_COMM_WORLD_LOCAL_'; "
    "print(os.environ[name + 'RANK'], os.environ[name + 'SIZE'])"
)
OWN = os.uname().nodename


@pytest.mark.parametrize(
    "text, hosts",
    [
        ("a", [("a", None)]),
        ("a:2", [("a", 2)]),
        ("a:2,b:3", [("a", 2), ("b", 3)]),
        ("a:2 b:3", [("a", 2), ("b", 3)]),
        (" a:2, b ,", [("a", 2), ("b", None)]),
        ("10.0.0.1:4", [("10.0.0.1", 4)]),
        ("[fe80::1]:4,::1", [("fe80::1", 4), ("::1", None)]),
    ],
)
def test_forms_of_the_host_list(text, hosts):
    assert parse_hosts(text) == hosts


@pytest.mark.parametrize("text", ["", " , ", "a:0", "a:x", "a:1:2", "a;b:1", "-x:1"])
def test_unreadable_host_lists_are_refused(text):
    with pytest.raises(LaunchError, match="-H"):
        parse_hosts(text)


def test_host_file(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# two hosts\n\na slots=2  # first\n  b   slots = 3 max_slots=9\nc:4\nd\n")
    assert read_hostfile(str(path)) == [("a", 2), ("b", 3), ("c", 4), ("d", None)]


@pytest.mark.parametrize(
    "text", ["", "# nothing\n\n", "a slots=0\n", "a slots=x\n", "a b:1 ;\n;\n"]
)
def test_bad_host_files_name_the_file(tmp_path, text):
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(LaunchError, match=str(path)):
        read_hostfile(str(path))


@pytest.mark.parametrize(
    "hosts, np, placed",
    [
        ([("localhost", None)], 3, [("localhost", 3)]),
        ([("localhost", 1), ("127.0.0.1", 1), (OWN, 2)], 4, [("localhost", 4)]),
        ([("localhost", 9)], 2, [("localhost", 2)]),
        ([("n1.invalid", 2), ("n2.invalid", 2)], 3, [("n1.invalid", 2), ("n2.invalid", 1)]),
        ([("n1.invalid", None), ("n2.invalid", None)], 3, [("n1.invalid", 2), ("n2.invalid", 1)]),
        ([("n1.invalid", 1), ("n2.invalid", None)], 3, [("n1.invalid", 1), ("n2.invalid", 2)]),
    ],
)
def test_ranks_fill_the_slots(hosts, np, placed):
    assert assign(hosts, np, "-H") == placed


def test_too_few_slots_are_counted_out():
    with pytest.raises(LaunchError, match=r"needs 4 slots.*gives 3 \(a.invalid:1, b.invalid:2\)"):
        assign([("a.invalid", 1), ("b.invalid", 2)], 4, "-H a.invalid:1,b.invalid:2")


@pytest.mark.parametrize(
    "hosts",
    ["localhost", "localhost:2", "127.0.0.1:2", f"{OWN}:2", f"{socket.getfqdn()}:2",
     f"localhost:1,{OWN}:1", "localhost:1 127.0.0.1:1"],
)  # fmt: skip
def test_names_of_this_machine_need_no_ssh(horovodrun, hosts, tmp_path):
    """Neither the launcher nor mpirun may call ssh: the one on PATH fails."""
    (tmp_path / "ssh").write_text("#!/bin/sh\nexit 99\n")
    (tmp_path / "ssh").chmod(0o755)
    path = f"{tmp_path}:{horovodrun.environment['PATH']}"
    result = horovodrun.python(2, RANKS, "-H", hosts, env={"PATH": path})
    assert result.returncode == 0, result.err
    assert sorted(result.out.splitlines()) == ["[1,0]<stdout>:0 2", "[1,1]<stdout>:1 2"]


def test_host_file_runs_here(horovodrun, tmp_path):
    (tmp_path / "hosts").write_text("# this machine\n\nlocalhost slots=2\n")
    for option in ("-hostfile", "--hostfile"):
        result = horovodrun.python(2, "print(5)", option, tmp_path / "hosts")
        assert result.out.count(">:5\n") == 2, result.err


@pytest.mark.parametrize(
    "words, says",
    [
        (["-H", "localhost:0"], "gives 0 slots"),
        (["-H", "localhost:1"], "-np 2 needs 2 slots, but -H localhost:1 gives 1"),
        (["-H", "localhost:1", "localhost:1"], "write -H localhost:1,localhost:1"),
        (["-H", "a:b"], "can't read 'a:b'"),
        (["--hostfile", "no-such-file"], "can't read host file no-such-file"),
        (["-H", "no-such-host.invalid:2"], "no-such-host.invalid: its name is not known"),
        (["-H", "localhost:1,192.0.2.1:1", "--start-timeout", "2"], "192.0.2.1: it did not answer"),
    ],
)
def test_hosts_that_do_not_work_end_in_one_line(horovodrun, one_line, words, says):
    assert says in one_line(horovodrun("-np", 2, *words, "true", timeout=30))


@pytest.mark.parametrize(
    "text, says",
    [
        ("Permission denied (publickey).", "refused the key; `ssh n1.invalid` must work"),
        ("Host key verification failed.", "run `ssh n1.invalid` once"),
        ("ssh: connect to host n1 port 22: Connection refused", "no ssh server on that port"),
        ("something new", "ssh failed: something new"),
    ],
)
def test_what_ssh_says_is_explained(horovodrun, one_line, tmp_path, text, says):
    script = tmp_path / "ssh"
    script.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\necho "{text}" >&2\nexit 255\n')
    script.chmod(0o755)
    path = f"{tmp_path}:{horovodrun.environment['PATH']}"
    key = tmp_path / "key"
    key.touch()
    words = ["-np", 2, "-H", "n1.invalid:2", "-p", 2222, "-i", key, "true"]
    assert says in one_line(horovodrun(*words, env={"PATH": path}))
    asked = (tmp_path / "asked").read_text()
    assert "BatchMode=yes" in asked and f"-p 2222 -i {key} n1.invalid /bin/sh -s" in asked


def test_more_ranks_than_cores(horovodrun):
    np = os.cpu_count() + 2
    result = horovodrun(
        "-np", np, sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"
    )
    assert result.returncode == 0, result.err
    cores = len(os.sched_getaffinity(0))  # no rank is squeezed on fewer cores than the job has
    assert result.out.count(f">:{cores}\n") == np
