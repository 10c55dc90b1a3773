"""The lists of hosts that PBS and LSF give to a job; on real hosts they are in test_ssh.py."""

import pytest

from hvdrun import LaunchError
from hvdrun.schedulers import Allocation, allocation


def test_outside_of_a_job_there_is_none():
    assert allocation({}) is None
    assert allocation({"PBS_NODEFILE": "", "LSB_MCPU_HOSTS": ""}) is None


@pytest.mark.parametrize(
    "scheduler, variable", [("PBS", "PBS_NODEFILE"), ("LSF", "LSB_DJOB_HOSTFILE")]
)
def test_a_file_with_a_line_for_each_slot(tmp_path, scheduler, variable):
    path = tmp_path / "nodes"
    path.write_text("n2.cluster\nn2.cluster\nn1.cluster\n")
    found = allocation({variable: str(path)})
    assert found == Allocation(scheduler, [("n2.cluster", 2), ("n1.cluster", 1)])


def test_the_list_of_lsf():
    assert allocation({"LSB_MCPU_HOSTS": "n1 4 n2 2 "}) == Allocation("LSF", [("n1", 4), ("n2", 2)])


def test_slurm_comes_first():
    """A job of Slurm may carry the variables of a login node of another scheduler."""
    slurm = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}
    found = allocation({**slurm, "LSB_MCPU_HOSTS": "other 4"})
    assert found == Allocation("Slurm", [("n1", 2), ("n2", 2)])


@pytest.mark.parametrize("text", ["n1", "n1 x", "n1 2 n2", "2 n1"])
def test_an_unreadable_list_is_shown(text):
    with pytest.raises(LaunchError, match="LSF's list of hosts"):
        allocation({"LSB_MCPU_HOSTS": text})


def test_a_file_that_is_empty_or_not_there_is_named(tmp_path, one_line, horovodrun):
    line = one_line(horovodrun("-np", 2, "true", env={"PBS_NODEFILE": "/nowhere/nodes"}))
    assert "can't read PBS's list of hosts ($PBS_NODEFILE) /nowhere/nodes: No such file" in line
    empty = tmp_path / "empty"
    empty.touch()
    line = one_line(horovodrun("-np", 2, "true", env={"LSB_DJOB_HOSTFILE": str(empty)}))
    assert f"LSF's list of hosts {empty} ($LSB_DJOB_HOSTFILE) is empty" in line


def test_a_job_on_this_machine_only(horovodrun, tmp_path):
    """More ranks than slots are shared by the hosts; this one needs no ssh."""
    (tmp_path / "nodes").write_text("localhost\n")
    result = horovodrun("-np", 2, "true", env={"PBS_NODEFILE": str(tmp_path / "nodes")})
    assert result.returncode == 0, result.err
