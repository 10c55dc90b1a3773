"""Who am I: ranks, hosts, sub-worlds, and launchers that don't fit the MPI."""

import subprocess
import sys

import pytest
from mpi import environment, launch

ASK = """
import arrays as hvd
hvd.init()
print(
    "ranks", hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(),
    hvd.cross_size(), hvd.is_homogeneous(), flush=True,
)
import numpy as np
assert hvd.allreduce(np.ones(70_000, np.float32), op=hvd.Sum).wait()[-1] == hvd.size()
"""


def _answers(outcome) -> list[str]:
    assert outcome.returncode == 0, outcome
    return sorted(line for line in outcome.stdout.splitlines() if line.startswith("ranks"))


def test_one_machine_is_one_host():
    assert _answers(launch(ASK, 2)) == ["ranks 0 2 0 2 0 1 True", "ranks 1 2 1 2 0 1 True"]


def test_several_hosts_even_and_uneven():
    even = _answers(launch(ASK, 4, env={"HVDLITE_RANKS_PER_HOST": "2"}))
    assert even == [
        "ranks 0 4 0 2 0 2 True",
        "ranks 1 4 1 2 0 2 True",
        "ranks 2 4 0 2 1 2 True",
        "ranks 3 4 1 2 1 2 True",
    ]
    uneven = _answers(launch(ASK, 3, env={"HVDLITE_RANKS_PER_HOST": "2"}))
    assert uneven == [
        "ranks 0 3 0 2 0 2 False",
        "ranks 1 3 1 2 0 1 False",
        "ranks 2 3 0 1 1 2 False",
    ]


def test_a_stall_between_hosts_is_explained_too():
    outcome = launch(
        """
import time
import numpy as np
import arrays as hvd
hvd.init()
try:
    if hvd.rank() == 0:
        hvd.allreduce(np.ones(2), name="a").wait()
    else:
        hvd.allreduce(np.ones(2), name="b").wait()
except hvd.HorovodInternalError as error:
    print(hvd.rank(), error, flush=True)
hvd.shutdown()
hvd.init()
assert hvd.allreduce(np.ones(2), op=hvd.Sum).wait()[0] == 2
""",
        2,
        env={"HVDLITE_RANKS_PER_HOST": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "1.5"},
    )
    assert outcome.returncode == 0, outcome
    assert "allreduce 'a'" in outcome.stdout and "allreduce 'b'" in outcome.stdout
    assert "waits in allreduce" in outcome.stdout, outcome


def test_a_rank_that_ends_early_is_named_across_hosts():
    outcome = launch(
        """
import numpy as np
import arrays as hvd
hvd.init()
if hvd.rank() == 0:
    hvd.allreduce(np.ones(2), name="one too many").wait()
""",
        2,
        env={"HVDLITE_RANKS_PER_HOST": "1"},
    )
    assert outcome.returncode == 1, outcome
    assert "'one too many' can't finish: rank 1 has ended its program" in outcome.stderr, outcome


def test_init_with_some_ranks_and_with_a_communicator():
    outcome = launch(
        """
import numpy as np
from mpi4py import MPI
import arrays as hvd
world = MPI.COMM_WORLD
hvd.init(comm=[0, 2])
if world.rank == 1:
    assert hvd.size() == 1 and hvd.rank() == 0
else:
    assert hvd.size() == 2 and hvd.rank() == world.rank // 2
    assert hvd.allreduce(np.array(world.rank), op=hvd.Sum).wait() == 2
hvd.shutdown()
part = world.Split(world.rank > 0)
hvd.init(comm=part)
assert hvd.size() == part.size
assert hvd.allreduce(np.ones(3), op=hvd.Sum).wait()[0] == part.size
print("good", flush=True)
""",
        3,
    )
    assert outcome.returncode == 0, outcome
    assert outcome.stdout.count("good") == 3


def _alone(code: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment(extra=env),
        capture_output=True,
        text=True,
        timeout=200,
    )


INIT = "import hvdlite as hvd; hvd.init(); print('size', hvd.size())"


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, "srun --mpi=pmix"),
        ({"PMI_SIZE": "4", "PMI_RANK": "1"}, "use the mpirun of the same MPI"),
    ],
)
def test_a_launcher_that_mpi_does_not_know_is_an_error_and_not_n_worlds_of_one(env, says):
    done = _alone(INIT, **env)
    assert done.returncode != 0
    assert says in done.stderr and "sees this one alone" in done.stderr


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"},  # a batch script is a process by itself
        {"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_a_process_by_itself_is_a_world_of_one(env):
    done = _alone(INIT, **env)
    assert done.returncode == 0, done.stderr
    assert "size 1" in done.stdout


def test_mpi_is_right_where_slurms_variables_say_otherwise():
    outcome = launch(ASK, 2, env={"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"})
    assert [line.split()[2] for line in _answers(outcome)] == ["2", "2"]


def test_a_setting_that_makes_no_sense_is_named():
    done = _alone(INIT, HVDLITE_ALLREDUCE="fastest")
    assert done.returncode != 0 and "HVDLITE_ALLREDUCE='fastest'" in done.stderr
    done = _alone(INIT, HOROVOD_FUSION_THRESHOLD="big")
    assert done.returncode != 0 and "HOROVOD_FUSION_THRESHOLD='big'" in done.stderr
