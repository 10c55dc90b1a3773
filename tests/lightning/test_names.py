"""How a Trainer finds the strategy: by its name, in every order of imports, and only if asked."""

import os
import subprocess
import sys

import pytest
from mpi import launch, paths


def python(source: str, **env: str) -> str:
    """What a program prints, in a process without a launcher."""
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "PYTHONPATH": paths(), **env},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ORDERS = {
    "hvd first": "import hvdlite.torch, lightning.pytorch as pl",
    "hvd last": "import lightning.pytorch as pl, horovod.torch",
    "old name": "import pytorch_lightning as pl, horovod.torch",
    "hvd never": "import hvdnames.start, lightning.pytorch as pl",  # hvdnames.pth imports the first
    "old name, hvd never": "import hvdnames.start, pytorch_lightning as pl",
}
TRAINER = """
trainer = pl.Trainer(strategy="horovod", accelerator="cpu", logger=False)
strategies = __import__(pl.__name__ + ".strategies", fromlist=["HorovodStrategy"])
assert type(trainer.strategy) is strategies.HorovodStrategy
print(type(trainer.strategy).__name__, trainer.world_size)
"""


@pytest.mark.parametrize("order", ORDERS)
def test_the_name_is_known(order):
    assert python(f"{ORDERS[order]}{TRAINER}").endswith("HorovodStrategy 1\n")


def test_the_class_is_in_the_room_as_well():
    assert python(
        "import horovod.torch, lightning.pytorch.strategies as s, hvdlite.lightning as ours\n"
        "import pytorch_lightning.strategies as old\n"
        "assert ours.HorovodStrategy is s.HorovodStrategy is not old.HorovodStrategy\n"
        "print(ours.strategy_for('pytorch_lightning') is old.HorovodStrategy)"
    ) == ("True\n")


def test_switched_off():
    source = (
        "import lightning.pytorch.strategies as s, hvdlite.torch\n"
        "print('horovod' in s.StrategyRegistry)"
    )
    assert python(source, HVDLITE_OLD_NAMES="0") == "False\n"
    assert python(source) == "True\n"


def test_who_does_not_use_lightning_does_not_load_it():
    source = (
        "import sys, hvdlite.torch\nprint({'lightning', 'pytorch_lightning', 'hvdlite.lightning'}"
        " & sys.modules.keys())"
    )
    assert python(source) == "set()\n"


def test_another_missing_name_is_missing():
    source = (
        "import hvdlite.torch, lightning.pytorch.strategies as s\n"
        "try: s.BaguaStrategy\n"
        "except AttributeError as error: print(error)"
    )
    assert "has no attribute 'BaguaStrategy'" in python(source)


def test_a_program_of_lightning_1_under_mpirun():
    """It imports nothing of Horovod's, and prints by rank_zero_only before it has a Trainer."""
    done = launch(
        """
        import hvdnames.start
        import pytorch_lightning as pl
        from lightning_training import fit, plain_module
        from pytorch_lightning.utilities import rank_zero_only

        rank_zero_only(print)("before the Trainer")
        module = plain_module("pytorch_lightning")
        trainer = fit("pytorch_lightning", "horovod", module, 2)
        rank_zero_only(print)("after it", trainer.world_size)
        """,
        np=2,
    )
    assert done.returncode == 0, done
    assert done.stdout.count("before the Trainer") == 1, done
    assert done.stdout.count("after it 2") == 1, done


def test_a_failing_rank_ends_the_job():
    done = launch(
        """
        import horovod.torch as hvd
        from lightning_training import fit, plain_module

        module = plain_module("lightning.pytorch")
        step = module.training_step

        def training_step(batch, batch_idx):
            if hvd.rank() == 1 and batch_idx == 2:
                raise SystemError("no more")
            return step(batch, batch_idx)

        module.training_step = training_step
        fit("lightning.pytorch", "horovod", module, 2)
        """,
        np=2,
    )
    assert done.returncode != 0
    assert "SystemError: no more" in done.stderr and "rank 1" in done.stderr, done


SLURM = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


def test_a_job_of_slurm_started_with_ntasks():
    """Slurm says --ntasks=2 in these variables; Lightning by itself asks for another one."""
    source = f"import hvdlite.torch, lightning.pytorch as pl{TRAINER}"
    assert python(source, SLURM_TASKS_PER_NODE="2(x1)", **SLURM).endswith("HorovodStrategy 1\n")
