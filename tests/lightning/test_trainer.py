"""What a Trainer offers besides its steps, on two ranks."""

import csv
import importlib
from pathlib import Path

import pytest
from lightning_training import PACKAGES, QUIET, fit, loader, plain_module
from training import all_weights


def _who() -> tuple:
    import lightning.pytorch as pl

    import hvdlite.torch as hvd

    trainer = pl.Trainer(strategy="horovod", **QUIET)
    facts = trainer.global_rank, trainer.local_rank, trainer.node_rank, trainer.world_size
    counts = trainer.num_nodes, trainer.num_devices, trainer.is_global_zero
    return facts, counts, (hvd.rank(), hvd.local_rank(), 0, hvd.size())


def test_ranks(ranks):
    for rank, (facts, counts, expected) in enumerate(ranks(2).run(_who)):
        assert facts == expected == (rank, rank, 0, 2)
        assert counts == (1, 2, rank == 0)


def _logged() -> tuple[dict, dict]:
    """Batches of three and of two in validation, so that means have to be weighted."""
    import lightning.pytorch as pl
    import torchmetrics

    import hvdlite.torch as hvd

    hvd.init()
    logged = []
    for strategy, batch in (("horovod", 3), ("auto", 6)):
        module = plain_module(PACKAGES[0])
        module.metric = torchmetrics.MeanSquaredError()
        module.values = torchmetrics.CatMetric()

        def validation_step(batch, batch_idx, module=module, strategy=strategy):
            inputs, targets = batch
            outputs = module.net(inputs)
            module.metric(outputs, targets)
            skipped = hvd.rank() if strategy == "horovod" else 0
            module.values(inputs[skipped:, 0])  # of another length on each rank
            module.log("metric", module.metric)
            module.log("mean", (outputs - targets).square().mean(), sync_dist=True)
            for name in ("sum", "max", "min"):
                module.log(name, inputs.sum(), reduce_fx=name, sync_dist=True)

        module.validation_step = validation_step
        trainer = pl.Trainer(strategy=strategy, **QUIET)
        (result,) = trainer.validate(module, loader(batch, 10, strategy == "auto"), verbose=False)
        logged.append({**result, "values": module.values.compute().numel()})
    return tuple(logged)


def test_logged_metrics_are_those_of_all_ranks(ranks):
    first, second = ranks(2).run(_logged)
    assert first == second
    ours, alone = first
    for name in ("metric", "mean", "sum"):
        assert ours[name] == pytest.approx(alone[name], rel=1e-5), name
    assert ours["values"] == 3 + 2 + 2 + 1
    assert ours["max"] > ours["min"]


def _checkpoint(folder: str) -> tuple:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    import hvdlite.torch as hvd

    hvd.init()
    names = []
    kept = ModelCheckpoint(dirpath=folder, save_last=True)
    options = {"enable_checkpointing": True, "callbacks": [kept]}
    whole, first, second = (plain_module(PACKAGES[0]) for _ in range(3))
    fit(PACKAGES[0], "horovod", whole, 2, max_epochs=4)
    trainer = fit(PACKAGES[0], "horovod", first, 2, max_epochs=2, **options)
    trainer.save_checkpoint(f"{folder}/of-all.ckpt")
    names = sorted(path.name for path in Path(folder).iterdir())
    trainer = pl.Trainer(strategy="horovod", **{**QUIET, "max_epochs": 4})
    trainer.fit(second, loader(2), ckpt_path=f"{folder}/last.ckpt")
    return names, all_weights(whole), all_weights(second), len(second.losses)


def test_checkpoint_and_resume(ranks, tmp_path):
    for names, whole, second, steps in ranks(2).run(_checkpoint, str(tmp_path)):
        assert names == ["epoch=1-step=10.ckpt", "last.ckpt", "of-all.ckpt"]
        assert second == whole and steps == 10


def _stopped_early() -> int:
    import torch
    from lightning.pytorch.callbacks import EarlyStopping

    import hvdlite.torch as hvd

    hvd.init()
    module = plain_module(PACKAGES[0])

    def on_train_epoch_end():  # on rank 1 it never gets better
        value = float(module.current_epoch if hvd.rank() == 1 else -module.current_epoch)
        module.log("value", torch.tensor(value))

    module.on_train_epoch_end = on_train_epoch_end
    stopping = EarlyStopping("value", patience=2, check_on_train_epoch_end=True)
    trainer = fit(PACKAGES[0], "horovod", module, 2, max_epochs=9, callbacks=[stopping])
    return trainer.current_epoch


def test_all_ranks_stop_early_together(ranks):
    first, second = ranks(2).run(_stopped_early)
    assert first == second == 3


def _predicted() -> list:
    import lightning.pytorch as pl

    import hvdlite.torch as hvd

    hvd.init()
    module = plain_module(PACKAGES[0])
    module.predict_step = lambda batch, batch_idx: batch[0][:, 0].tolist()
    parts = pl.Trainer(strategy="horovod", **QUIET).predict(module, loader(2, 9))
    return [value for part in parts for value in part]


def test_predict(ranks):
    from lightning_training import data

    first, second = ranks(2).run(_predicted)
    expected = data(9).tensors[0][:, 0].tolist()
    assert first == expected[::2] and second == expected[1::2]  # each sample once


def _talk() -> list:
    import lightning.pytorch as pl
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    rank, module = hvd.rank(), plain_module(PACKAGES[0])
    module.trainer = pl.Trainer(strategy="horovod", **QUIET)
    strategy = module.trainer.strategy
    strategy.barrier("here")
    weight = torch.tensor([float(rank + 1)], requires_grad=True)
    gathered = module.all_gather(weight, sync_grads=True)
    (gathered * torch.tensor([[1.0], [10.0]])).sum().backward()
    tensor = torch.tensor([rank, 3], dtype=torch.int32)
    with torch.inference_mode():
        inside = strategy.reduce(torch.tensor([rank + 1.0]), reduce_op="sum").tolist()
    return [
        strategy.broadcast({"from": rank}, src=1)["from"],
        gathered.tolist(),
        weight.grad.tolist(),
        {name: value.tolist() for name, value in module.all_gather({"a": rank, "b": 2.0}).items()},
        strategy.reduce(tensor).tolist(),
        strategy.reduce(tensor, reduce_op=torch.distributed.ReduceOp.SUM).tolist(),
        strategy.reduce(tensor, reduce_op="MAX").tolist(),
        strategy.reduce(2.5 * rank).item(),
        strategy.reduce_boolean_decision(rank == 0),
        strategy.reduce_boolean_decision(rank == 0, all=False),
        inside,
    ]


def test_between_the_ranks(ranks):
    first, second = ranks(2).run(_talk)
    assert first[0] == 1 and first[1] == [[1.0], [2.0]] and first[1:2] == second[1:2]
    assert first[2] == [1.0] and second[2] == [10.0]  # the mean of what all ranks ask for
    assert first[3] == {"a": [0, 1], "b": [2.0, 2.0]}
    assert first[4:] == second[4:] == [[0.5, 3.0], [1, 6], [1, 3], 1.25, False, True, [3.0]]


def _wrong(name: str) -> str:
    import lightning.pytorch as pl
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    strategy = pl.Trainer(strategy="horovod", **QUIET).strategy
    call = {
        "operation": lambda: strategy.reduce(torch.ones(1), reduce_op="median"),
        "group": lambda: strategy.all_gather(torch.ones(1), group="all"),
    }[name]
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


def test_wrong_arguments(ranks):
    for message in ranks(2).run(_wrong, "operation"):
        assert "'median'" in message and "mean" in message
    for message in ranks(2).run(_wrong, "group"):
        assert "'all'" in message and "ProcessSet" in message


def _printed(package: str, folder: str) -> tuple:
    import hvdlite.torch as hvd

    hvd.init()
    pl = importlib.import_module(package)
    logger = pl.loggers.CSVLogger(f"{folder}/{hvd.rank()}", version=0)
    module = plain_module(package)
    step = module.training_step

    def training_step(batch, batch_idx):
        loss = step(batch, batch_idx)
        module.log("loss", loss, sync_dist=True)
        return loss

    module.training_step = training_step
    options = {"logger": logger, "log_every_n_steps": 1, "enable_progress_bar": True}
    trainer = fit(package, "horovod", module, 2, max_epochs=1, **options)
    means = [sum(both) / 2 for both in zip(*hvd.allgather_object(module.losses), strict=True)]
    return trainer.progress_bar_callback.is_disabled, means


@pytest.mark.parametrize("package", PACKAGES)
def test_rank_0_prints_and_logs(ranks, package, tmp_path):
    results = ranks(2).run(_printed, package, str(tmp_path))
    assert [disabled for disabled, _ in results] == [False, True]
    (path,) = tmp_path.rglob("metrics.csv")
    assert path.is_relative_to(tmp_path / "0")
    with open(path) as log:
        losses = [float(row["loss"]) for row in csv.DictReader(log)]
    assert losses == pytest.approx(results[0][1], rel=1e-5)


def _twice() -> list:
    """Another fit, with another Trainer, after shutdown() and init()."""
    import hvdlite.torch as hvd

    hvd.init()
    module = plain_module(PACKAGES[0])
    fit(PACKAGES[0], "horovod", module, 2)
    hvd.shutdown()
    fit(PACKAGES[0], "horovod", module, 2)
    return all_weights(module)


def test_after_another_init(ranks):
    first, second = ranks(2).run(_twice)
    assert first == second
