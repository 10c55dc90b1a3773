"""What programs written for Horovod do around training: metrics, resuming, several models."""

import pytest
from habits import check_ranks, learn, tiny_batches, tiny_model, tiny_weights
from mpi import TORCH, launch


def _by_position() -> list:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model = tiny_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 1.0),
        model.named_parameters(),
        hvd.Compression.none,
        2,
        hvd.Average,
        2.0,
        1,
        None,
        True,
        hvd.global_process_set,
    )
    before = model[2].bias.tolist()
    for _ in range(2):
        model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    tensor = torch.full((2,), float(hvd.rank()))
    return [
        [old - new for old, new in zip(before, model[2].bias.tolist(), strict=True)],
        hvd.allreduce(tensor, None, "by position", hvd.Compression.fp16, hvd.Sum).tolist(),
        hvd.allreduce_(tensor.clone(), False).tolist(),
        hvd.broadcast(tensor, 1, "b").tolist(),
        hvd.allgather(tensor, "g", hvd.global_process_set).tolist(),
        hvd.alltoall(tensor, [1, 1], "a", hvd.global_process_set)[0].tolist(),
        hvd.reducescatter(tensor, "r", hvd.Compression.none, hvd.Sum).tolist(),
    ]


def test_arguments_by_position(ranks):
    expected = [[2, 2], [1, 1], [1, 1], [1, 1], [0, 0, 1, 1], [0, 1], [1]]
    for result in ranks(2).run(_by_position):
        assert result[0] == pytest.approx(expected[0])
        assert result[1:] == expected[1:]


def _metrics() -> list:
    """Unnamed 0-d and integer tensors, and the function that most programs carry with them."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    rank = hvd.rank()

    def metric_average(value, name):
        return hvd.allreduce(torch.tensor(value), name=name).item()

    return [
        metric_average(0.25 + rank, "avg_loss"),
        metric_average(0.25 + rank, "avg_loss"),
        metric_average(3 * rank, "count"),
        metric_average(bool(rank) + 0.0, "avg_accuracy"),
        hvd.allreduce(torch.tensor(rank + 1.0)).item(),
        hvd.allreduce(torch.tensor(2**60 + rank), op=hvd.Sum).item(),
        hvd.allreduce(torch.tensor([rank, 2**61])).tolist(),
        hvd.allreduce(torch.tensor(rank), average=False).item(),
        hvd.allreduce_(torch.tensor(5)).item(),
        hvd.allreduce(torch.tensor(1.0), op=hvd.Sum).shape,
    ]


def test_metrics_are_averaged(ranks):
    expected = [0.75, 0.75, 1, 0.5, 1.5, 2**61 + 1, [0, 2**61], 1, 5, ()]
    for result in ranks(2).run(_metrics):
        assert result == expected


def _two_models(same_names: bool) -> tuple[list, list]:
    """Two networks against each other, each with an optimizer, in turn, by model.zero_grad()."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    nets = [[tiny_model(seed).double() for seed in (1, 2)] for _ in range(2)]
    optimizers = [[torch.optim.Adam(net.parameters(), lr=0.05) for net in pair] for pair in nets]
    for i in range(2):
        prefix = "" if same_names else f"net{i}."
        named = [(prefix + name, param) for name, param in nets[0][i].named_parameters()]
        optimizers[0][i] = hvd.DistributedOptimizer(optimizers[0][i], named_parameters=named)
    for batch in tiny_batches(4, hvd.size()).double():
        for (a, b), (first, second), data in zip(
            nets, optimizers, (batch[hvd.rank()], batch.flatten(0, 1)), strict=True
        ):
            a.zero_grad()
            loss = (a(data) - b(data).detach()).square().mean()
            loss.backward()
            first.step()
            b.zero_grad()
            a.zero_grad()
            (b(data) - a(data).detach()).abs().mean().backward()
            second.step()
    return [w for net in nets[0] for w in tiny_weights(net)], [
        w for n in nets[1] for w in tiny_weights(n)
    ]


@pytest.mark.parametrize("same_names", [False, True])
def test_two_models_at_once(ranks, same_names):
    check_ranks(ranks(2).run(_two_models, same_names), 1e-9)


def _scaled(pattern: str) -> tuple[list, list, list, list]:
    """Mixed precision with a GradScaler; in one step rank 1's loss is infinite."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    results, scales = [], []
    for distributed in (True, False):
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if distributed:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        told = []
        for step, batch in enumerate(tiny_batches(6, size)):
            overflow = step == 2 and pattern != "step alone"
            data = batch[rank] if distributed else batch.flatten(0, 1)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=pattern == "autocast"):
                loss = model(data).square().mean()
            if overflow and (rank == 1 or not distributed):
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if pattern == "step alone" or not distributed:
                if not distributed and pattern != "step alone":
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                scaler.step(optimizer)
            else:
                optimizer.synchronize()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
            scaler.update()
            told.append(scaler.get_scale())
        results.append(tiny_weights(model))
        scales.append(told)
    return (*results, *scales)


@pytest.mark.parametrize(
    ("pattern", "tolerance"), [("unscale and clip", 1e-5), ("step alone", 1e-5), ("autocast", 2e-2)]
)
def test_gradient_scaler(ranks, pattern, tolerance):
    results = ranks(2).run(_scaled, pattern)
    check_ranks([(ours, alone) for ours, alone, _, _ in results], tolerance)
    lower = 1024.0 if pattern == "step alone" else 512.0
    for _, _, scales, alone in results:
        assert scales == alone == [1024.0] * 2 + [lower] * 4


def _compiled(backend: str) -> tuple[list, list]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    ours, alone = tiny_model(), tiny_model()
    compiled = torch.compile(ours, backend=backend)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(compiled.parameters(), lr=0.01), compiled.named_parameters()
    )
    hvd.broadcast_parameters(compiled.state_dict(), 0)
    plain = torch.optim.Adam(alone.parameters(), lr=0.01)
    for batch in tiny_batches(3, hvd.size()):
        learn(compiled, optimizer, batch[hvd.rank()])
        learn(alone, plain, batch.flatten(0, 1))
    return tiny_weights(ours), tiny_weights(alone)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model(ranks, backend):
    check_ranks(ranks(2).run(_compiled, backend))


# Checkpoints


def _resume(path: str, every_rank_loads: bool, wrapped: bool) -> tuple[list, list]:
    """Losses of an uninterrupted run of four epochs, and of one that resumes after two."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    batches = tiny_batches(4, hvd.size())[:, hvd.rank()]

    def start(seed):
        model = tiny_model(seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, amsgrad=True)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return model, optimizer, scheduler

    def wrap(model, optimizer):
        return hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def train(model, optimizer, scheduler, epoch):
        losses = [learn(model, optimizer, batch) for batch in batches]
        scheduler.step()
        if hvd.rank() == 0:
            parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
            torch.save({key: part.state_dict() for key, part in parts.items()}, f"{path}.{epoch}")
        return [*losses, optimizer.param_groups[0]["lr"]]

    model, optimizer, scheduler = start(3)
    optimizer = wrap(model, optimizer)
    whole = [train(model, optimizer, scheduler, epoch) for epoch in range(4)]

    model, optimizer, scheduler = start(50 + hvd.rank())
    if wrapped:
        optimizer = wrap(model, optimizer)
    epoch = 2 if hvd.rank() == 0 else 0
    epoch = int(hvd.broadcast(torch.tensor(epoch), root_rank=0, name="resume_from_epoch"))
    if hvd.rank() == 0 or every_rank_loads:
        saved = torch.load(f"{path}.{epoch - 1}")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
    if not every_rank_loads:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        scheduler.load_state_dict(hvd.broadcast_object(scheduler.state_dict(), 0))
    if not wrapped:
        optimizer = wrap(model, optimizer)
    return whole[2:], [train(model, optimizer, scheduler, e) for e in range(epoch, 4)]


@pytest.mark.parametrize("every_rank_loads", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_resumed_run_has_the_losses_of_an_uninterrupted_one(
    ranks, tmp_path, every_rank_loads, wrapped
):
    for whole, resumed in ranks(2).run(_resume, str(tmp_path / "c"), every_rank_loads, wrapped):
        assert resumed == whole  # to the last bit


# Surroundings


def test_init_at_import_time_and_a_changed_folder(tmp_path):
    library = tmp_path / "library.py"
    library.write_text("import horovod.torch as hvd\nhvd.init()\nRANK = hvd.rank()\n")
    outcome = launch(
        f"""
        import os, sys
        sys.path.insert(0, {str(tmp_path)!r})
        os.chdir({str(tmp_path)!r})
        os.environ["HOROVOD_TIMELINE"] = "timeline.json"
        from library import RANK, hvd
        import torch
        folder = f"data-{{RANK}}"
        os.mkdir(folder)
        os.chdir(folder)
        model = torch.nn.Linear(300, 300)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        model(torch.ones(1, 300)).sum().backward()
        optimizer.step()
        pair = hvd.add_process_set([1])
        print("sum", hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), flush=True)
        hvd.shutdown()
        hvd.init()
        print("again", hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), flush=True)
        """,
        2,
        env={"HOROVOD_TIMELINE": ""},
        modules=TORCH,
    )
    assert outcome.returncode == 0, outcome
    assert outcome.stdout.count("sum 2.0") == 2 and outcome.stdout.count("again 2.0") == 2
    assert outcome.stderr == ""
    assert (tmp_path / "timeline.json").exists()


def test_variables_that_are_accepted_without_effect():
    names = """
        ADASUM_MPI_CHUNK_SIZE AUTOTUNE AUTOTUNE_LOG BATCH_D2D_MEMCOPIES CACHE_CAPACITY CONTROLLER
        CPU_OPERATIONS CROSS_RANK CROSS_SIZE CYCLE_TIME DISABLE_GROUP_FUSION DYNAMIC_PROCESS_SETS
        ELASTIC ENABLE_ASYNC_COMPLETION GLOO_IFACE GPU_ALLREDUCE GPU_OPERATIONS HOSTNAME
        HIERARCHICAL_ALLGATHER LOCAL_RANK LOCAL_SIZE LOG_HIDE_TIME LOG_LEVEL LOG_TIMESTAMP
        MPI_THREADS_DISABLE NUM_NCCL_STREAMS RANK SIZE THREAD_AFFINITY WITH_PYTORCH
    """
    outcome = launch(
        """
        import torch
        import hvdlite.torch as hvd
        hvd.init()
        total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
        print(f"rank {hvd.rank()} of {hvd.size()}: {total}", flush=True)
        """,
        2,
        env={f"HOROVOD_{name}": "1" for name in names.split()},
        modules=TORCH,
    )
    assert outcome.returncode == 0, outcome
    assert sorted(outcome.stdout.splitlines()) == ["rank 0 of 2: 2.0", "rank 1 of 2: 2.0"]
    assert outcome.stderr == ""
