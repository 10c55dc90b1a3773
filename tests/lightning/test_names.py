"""How a Trainer finds the strategy: by its name, in every order of imports, and only if asked."""

import os
import subprocess

import mpi
import pytest
from lightning_training import LIGHTNING


@pytest.fixture
def printed(tmp_path):
    """What a program prints, in a process without a launcher; `modules` are there already."""

    def run(source: str, modules: tuple[str, ...] = (), **env: str) -> str:
        program = tmp_path / "program.py"
        program.write_text(source)
        done = subprocess.run(
            [*mpi.python(modules), str(program)],
            env={**os.environ, "PYTHONPATH": mpi.paths(), **env},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


TRAINER = """
trainer = pl.Trainer(strategy="horovod", accelerator="cpu", logger=False)
strategies = __import__(pl.__name__ + ".strategies", fromlist=["HorovodStrategy"])
assert type(trainer.strategy) is strategies.HorovodStrategy
print(type(trainer.strategy).__name__, trainer.world_size)
"""
FOUND = "HorovodStrategy 1\n"


def test_lightning_comes_after_hvd(printed):
    assert printed(f"import hvdlite.torch, lightning.pytorch as pl{TRAINER}").endswith(FOUND)


def test_hvd_comes_after_lightning(printed):
    source = f"""
import lightning.pytorch as pl, horovod.torch
{TRAINER}
import lightning.pytorch.strategies as new, pytorch_lightning.strategies as old, hvdlite.lightning
assert hvdlite.lightning.HorovodStrategy is new.HorovodStrategy is not old.HorovodStrategy
assert hvdlite.lightning.strategy_for("pytorch_lightning") is old.HorovodStrategy
try:
    new.BaguaStrategy
except AttributeError as error:
    print(error)
"""
    output = printed(source, LIGHTNING)
    assert FOUND in output and "has no attribute 'BaguaStrategy'" in output


def test_switched_off(printed):
    source = "import lightning.pytorch.strategies as s, hvdlite.torch; print([*s.StrategyRegistry])"
    assert "horovod" not in printed(
        f"import os; os.environ['HVDLITE_OLD_NAMES'] = '0'; {source}", LIGHTNING
    )
    assert "horovod" in printed(source, LIGHTNING)


def test_who_does_not_use_lightning_does_not_load_it(printed):
    names = "{'lightning', 'pytorch_lightning', 'torchmetrics', 'hvdlite.lightning'}"
    source = f"import sys, hvdlite.torch; print({names} & sys.modules.keys())"
    assert printed(source, mpi.TORCH) == "set()\n"


def test_a_job_of_slurm_started_with_ntasks(printed):
    """Slurm says --ntasks=2 in these variables; Lightning by itself asks for another one."""
    variables = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "2(x1)"}
    source = f"import os; os.environ.update({variables!r})\nimport lightning.pytorch as pl"
    output = printed(f"{source}, horovod.torch\n{TRAINER}", LIGHTNING)
    assert output.endswith(FOUND)


def test_a_program_of_lightning_1():
    """It imports nothing of Horovod's, and prints by rank_zero_only before it has a Trainer."""
    done = mpi.launch(
        """
        import hvdnames.start  # as hvdnames.pth does when Python starts
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
    done = mpi.launch(
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
        modules=LIGHTNING,
    )
    assert done.returncode != 0
    assert "SystemError: no more" in done.stderr and "rank 1" in done.stderr, done
