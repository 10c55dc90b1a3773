"""Lightning's Trainer in a job, by each launcher."""

import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
sys.path.insert(0, "TESTS")
import horovod.torch as hvd
from lightning_training import fit, plain_module
module = plain_module("lightning.pytorch")
trainer = fit("lightning.pytorch", "horovod", module, 2)
weight = float(module.net[0].weight.detach().sum())
environment = type(trainer._accelerator_connector.cluster_environment).__name__
sys.stdout.write(f"rank {trainer.global_rank} of {trainer.world_size}, local rank "
                 f"{trainer.local_rank}, node {trainer.node_rank}: {weight:.6f} {environment}\\n")
"""


@pytest.mark.slow
def test_a_trainer_on_two_nodes(slurm):
    """--ntasks=2, which Lightning by itself refuses."""
    tests = Path(__file__).parents[1]
    (slurm.work / "lit.py").write_text(PROGRAM.replace("TESTS", str(tests)))
    launchers = ("srun --mpi=pmix", "mpirun", "horovodrun -np 2")
    lines = [f"{launcher} {sys.executable} lit.py" for launcher in launchers]
    output = slurm.finish(slurm.submit("\n".join(lines), "-N2", "-n2"))
    told = sorted(line.split("> ")[-1] for line in output.splitlines() if " local rank " in line)
    assert len(told) == 6, output
    places = [line[line.index("rank") :].split(":")[0] for line in told]
    assert sorted(places) == [
        *["rank 0 of 2, local rank 0, node 0"] * 3,
        *["rank 1 of 2, local rank 0, node 1"] * 3,
    ]
    weights = {line.split(": ")[1].split()[0] for line in told}
    assert len(weights) == 1, output
    assert all("SLURMEnvironment" in line for line in told)  # which requeues
