"""`hvdlab slurm up`, `down`, `status`, `env`: what starts, who listens, what is left."""

import contextlib
import signal
import socket
import stat
import sys

import psutil
import pytest

from hvdlab.slurm import processes


def test_status_shows_nodes_and_jobs(slurm):
    job = slurm.submit("sleep 100", "--job-name=nap")
    slurm.until(lambda: slurm.state(job) == "RUNNING", "a running job")
    lines = slurm.good("status").splitlines()
    nodes = {line.split()[0]: line.split()[1:] for line in lines if line.startswith("node")}
    assert sorted(nodes) == ["node1", "node2"]
    assert nodes["node1"][0] == "mixed" and nodes["node2"][0] == "idle"
    assert nodes["node2"][1:3] == ["8", "gpu:4"]
    assert any(line.split()[0] == job and "nap" in line for line in lines)


def test_env_is_for_a_shell(slurm):
    own = {k: v for k, v in slurm.environment.items() if k != "SLURM_CONF"}
    hvdlab = f"{sys.executable} -c 'from hvdlab.cli import app; app()'"
    line = f'eval "$({hvdlab} slurm env)" && sinfo -h -o %D'
    slurm.environment, before = own, slurm.environment
    try:
        done = slurm.run("bash", "-c", line)
    finally:
        slurm.environment = before
    assert done.stdout.split() == ["2"], done.stderr


def test_up_twice_is_one_cluster(slurm):
    names = ("munged", "slurmctld", "slurmd")  # a step's daemon may just be ending
    before = {one.pid for one in processes.daemons(slurm.folder, *names)}
    assert "was up already with 2 nodes" in slurm.good("up", "--nodes", "2")
    assert {one.pid for one in processes.daemons(slurm.folder, *names)} == before


def test_slurm_listens_on_one_address_only(slurm):
    """Daemons, srun, and the step daemons that serve PMIx."""
    slurm.submit("srun --mpi=pmix sleep 100", "-N2", "-n2")

    def listeners() -> dict[str, set[str]]:
        """The addresses on which a program listens, by its name."""
        found: dict[str, set[str]] = {}
        for one in processes.of_cluster(slurm.folder):
            with contextlib.suppress(psutil.Error):
                for connection in one.net_connections("inet"):
                    if connection.status == psutil.CONN_LISTEN:
                        found.setdefault(one.name(), set()).add(connection.laddr.ip)
        return found

    wanted = {"slurmctld", "slurmd", "slurmstepd", "srun"}
    slurm.until(lambda: wanted <= set(listeners()), "a step whose programs listen")
    addresses = set().union(*listeners().values())
    # That of this machine's name: 127.0.0.1, or in a container its own.
    assert addresses == {socket.gethostbyname(socket.gethostname())}


def test_its_folder_is_private(slurm):
    assert stat.S_IMODE(slurm.folder.stat().st_mode) == 0o700


@pytest.mark.slow
def test_down_after_a_crash_leaves_nothing(another):
    """Daemons killed, a job that ignores polite requests: still no process and no file."""
    another.good("up", "--nodes", "1", "--gpus", "0")
    another.talk()
    another.environment["MARK_OF_THIS_TEST"] = "1"
    another.submit("trap '' TERM INT; srun sleep 1000 & sleep 1000", "--export=ALL")
    another.until(lambda: len(another.processes_with("MARK_OF_THIS_TEST")) >= 4, "the job")
    found = processes.of_cluster(another.folder)
    for name in ("slurmctld", "slurmd", "munged"):
        processes.send(processes.daemons(another.folder, name), signal.SIGKILL)
    status = another.hvdlab("status")
    assert status.returncode == 1 and "munged and slurmctld and node1 ended" in status.stderr
    assert another.good("down") == "Slurm is down.\n"
    assert not another.folder.exists()
    assert not another.processes_with("MARK_OF_THIS_TEST")
    assert not [one for one in found if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert another.good("down") == "No cluster was up.\n"


@pytest.mark.slow
def test_up_starts_over_what_a_crash_has_left(another):
    another.good("up", "--nodes", "1")
    processes.send(processes.of_cluster(another.folder), signal.SIGKILL)
    assert "is up with 1 nodes" in another.good("up", "--nodes", "1")
    assert len(processes.daemons(another.folder, "munged")) == 1
    # Two slurmd would mean that the old one was left; there is one, and it answers.
    assert len(processes.daemons(another.folder, "slurmd")) == 1
    assert "idle" in another.good("status")


def test_an_interrupt_of_up_leaves_no_daemon(another, tmp_path):
    """While the last of the daemons does not come up, so that `up` can't be done before."""
    waits = tmp_path / "bin" / "slurmd"
    waits.parent.mkdir()
    waits.write_text(f"#!/bin/sh\ntouch {tmp_path}/reached\nexec sleep 1000\n")
    waits.chmod(0o755)
    another.environment["PATH"] = f"{waits.parent}:{another.environment['PATH']}"
    up = another.start("up", "--nodes", "2")
    another.until((tmp_path / "reached").exists, "the first slurmd")
    assert {one.name() for one in processes.daemons(another.folder)} == {"munged", "slurmctld"}
    up.send_signal(signal.SIGINT)
    _, errors = up.communicate(timeout=60)
    assert (up.returncode, "interrupted" in errors) == (130, True), errors
    assert not processes.daemons(another.folder)
    assert list(another.folder.iterdir()) == []


def test_a_folder_with_other_files_is_not_touched(another):
    another.folder.mkdir()
    (another.folder / "thesis.tex").write_text("done")
    for command in ("up", "down"):
        done = another.hvdlab(command)
        assert (another.folder / "thesis.tex").read_text() == "done"
        assert command == "down" or "holds other files" in done.stderr


def test_commands_without_a_cluster_say_how_to_start_one(another):
    for words in (["status"], ["env"], ["fail", "node1"], ["resume", "node1"], ["preempt", "1"]):
        done = another.hvdlab(*words)
        assert (done.returncode, done.stdout) == (1, "")
        assert "no cluster is up; start one with: hvdlab slurm up" in done.stderr


def test_where_slurm_is_missing_the_command_that_installs_it_is_shown(tmp_path, monkeypatch):
    """No cluster here, so that this runs on a machine without Slurm, too."""
    from hvdlab.slurm.cluster import INSTALL, SlurmError, programs

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError) as caught:
        programs()
    assert "sbatch" in str(caught.value) and INSTALL in str(caught.value)
    assert "slurmctld slurmd slurm-client munge libpmix-dev" in INSTALL
