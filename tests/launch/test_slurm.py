"""Inside a Slurm allocation, by the variables that Slurm sets."""

import os

import pytest

from hvdrun import LaunchError
from hvdrun.slurm import allocated_hosts, expand_counts, expand_nodelist

OWN = os.uname().nodename
STEP = {"SLURM_JOB_ID": "7", "SLURM_JOBID": "7", "SLURM_STEP_ID": "0", "SLURM_STEPID": "0"}
ONE_TASK = STEP | {
    "SLURM_NODELIST": OWN, "SLURM_JOB_NODELIST": OWN, "SLURM_TASKS_PER_NODE": "1",
    "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
    "SLURM_CPUS_PER_TASK": "4", "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
}  # fmt: skip
SHOW = (
    "import os; print(os.environ['OMPI_COMM_WORLD_SIZE'], os.environ['SLURM_JOB_ID'], "
    "sorted(k for k in os.environ if k.startswith(('SLURM_STEP', 'SLURM_PROC', 'SLURM_NT'))))"
)


@pytest.mark.parametrize(
    "text, names",
    [
        ("n1", "n1"),
        ("n[01-02,05]", "n01 n02 n05"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[098-101],gpu3", "n098 n099 n100 n101 gpu3"),
        ("rack[1-2]node[1-2]", "rack1node1 rack1node2 rack2node1 rack2node2"),
        ("a,b-c.example.org,d[1,3]x", "a b-c.example.org d1x d3x"),
    ],
)
def test_node_lists(text, names):
    assert expand_nodelist(text) == names.split()


@pytest.mark.parametrize("text", ["", "n[1-", "n[a-b]", "n[]", "n 1", "n]1["])
def test_unreadable_node_lists_are_named(text):
    with pytest.raises(LaunchError, match="node list"):
        expand_nodelist(text)


@pytest.mark.parametrize("text, counts", [("1", [1]), ("2(x3),1", [2, 2, 2, 1]), ("4,2", [4, 2])])
def test_task_counts(text, counts):
    assert expand_counts(text) == counts


def test_two_nodes_of_an_allocation():
    environment = {"SLURM_JOB_NODELIST": "n[01-02,05]", "SLURM_TASKS_PER_NODE": "2(x2),1"}
    assert allocated_hosts(environment) == [("n01", 2), ("n02", 2), ("n05", 1)]
    assert allocated_hosts({}) is None


def test_ranks_of_several_nodes_go_to_slurm(horovodrun, one_line, tmp_path):
    """mpirun gets the hosts and Slurm's variables; no ssh is asked."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "mpirun (Open MPI) 5.0.8" && exit\n'
        f'echo "$@" >{tmp_path}/line\nenv >{tmp_path}/env\n'
    )
    mpirun.chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOBID": "7", "SLURM_JOB_NODELIST": "n[01-02,05]",
             "SLURM_TASKS_PER_NODE": "2(x2),1", "HVDLITE_MPIRUN": str(mpirun)}  # fmt: skip
    result = horovodrun("-np", 5, "true", env=slurm)
    assert result.returncode == 0, result.err
    assert "--host n01:2,n02:2,n05:1 " in (tmp_path / "line").read_text()
    assert "SLURM_JOBID=7" in (tmp_path / "env").read_text()
    result = horovodrun("-np", 2, "-H", "n01:1,n02:1", "true", env=slurm)
    assert result.returncode == 0, result.err
    assert "--host n01:1,n02:1 " in (tmp_path / "line").read_text()
    # more ranks than tasks: shared as evenly as can be
    assert horovodrun("-np", 7, "true", env=slurm).returncode == 0
    assert "--host n01:3,n02:2,n05:2 " in (tmp_path / "line").read_text()


def test_one_task_step_runs_the_ranks_on_its_node(horovodrun):
    result = horovodrun.python(2, SHOW, env=ONE_TASK)
    assert result.returncode == 0, result.err
    assert sorted(result.out.splitlines()) == [f"[1,{r}]<stdout>:2 7 []" for r in (0, 1)]


def test_batch_script_with_two_tasks_starts_two_ranks(horovodrun):
    batch = {k: v for k, v in ONE_TASK.items() if "STEP" not in k}
    batch |= {"SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "2", "SLURMD_NODENAME": "n01"}
    batch["SLURM_JOB_NODELIST"] = batch["SLURM_NODELIST"] = "n01"
    result = horovodrun.python(2, SHOW, env=batch)
    assert sorted(result.out.splitlines()) == [f"[1,{r}]<stdout>:2 7 []" for r in (0, 1)]


def test_two_srun_tasks_do_not_start_two_times_two_ranks(horovodrun, one_line):
    step = ONE_TASK | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
    line = one_line(horovodrun("-np", 2, "true", env=step))
    assert "srun started this launcher 2 times" in line
    assert "srun -n 2 --mpi=pmix" in line
    second = horovodrun("-np", 2, "true", env=step | {"SLURM_PROCID": "1"})
    assert (second.returncode, second.out, second.err) == (2, "", "")


def test_a_rank_can_start_a_job_of_its_own(horovodrun):
    """The outer job's variables must not reach the inner mpirun."""
    inner = ["-m", "hvdrun", "-np", "2", "python", "-c"]
    program = (
        f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, *{inner}, {SHOW!r}]))"
    )
    result = horovodrun.python(1, program, env=ONE_TASK)
    assert result.returncode == 0, result.err
    assert result.out.count("<stdout>:2 7 []\n") == 2
