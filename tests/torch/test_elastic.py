"""hvd.elastic: after a failed collective training goes on from the last commit."""

import pytest


def _train(fail_at: int, always: bool = False) -> dict:
    """Train for two epochs of six batches; the collective of batch `fail_at` fails at first."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    torch.manual_seed(hvd.rank())  # the ranks start from different weights
    images = torch.arange(48, dtype=torch.float32).reshape(24, 2) / 48
    model = torch.nn.Linear(2, 3)
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 4, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(images)
    state = hvd.elastic.TorchState(
        model, optimizer, scheduler=scheduler, sampler=sampler, epoch=0, done=0, seen=[]
    )
    starts, resets = [], []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    state.register_reset_callbacks([lambda: hvd.add_process_set([0])])

    @hvd.elastic.run
    def train(state):
        starts.append((state.epoch, state.done))
        while state.epoch < 2:
            for numbers in torch.utils.data.DataLoader(range(24), 2, sampler=state.sampler):
                state.model(images[numbers]).square().sum().backward()
                if state.done == fail_at and (always or not resets):
                    if hvd.rank() == 1:
                        state.commit()  # the root's commit is what counts
                    state.seen.append("lost")  # what was not committed is undone
                    hvd.allreduce(torch.ones(2 + hvd.rank()), name="wrong")
                state.optimizer.step()
                state.optimizer.zero_grad()  # so those of a lost batch are there at the next start
                state.scheduler.step()
                state.sampler.record_batch(0, len(numbers))
                state.seen += numbers.tolist()
                state.done += 1
                state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)

    error = ""
    try:
        train(state)
    except hvd.HorovodInternalError as failure:
        error = str(failure)
    hvd.shutdown()
    weights = [p.detach().numpy().tobytes() for p in model.parameters()]
    rate = optimizer.param_groups[0]["lr"]
    return {"weights": weights, "rate": rate, "seen": state.seen, "starts": starts,
            "resets": resets, "error": error}  # fmt: skip


@pytest.mark.parametrize("fail_at", [0, 3, 8])
def test_training_goes_on_as_if_nothing_had_happened(ranks, fail_at):
    smooth, broken = ranks(2).run(_train, -1), ranks(2).run(_train, fail_at)
    assert smooth[0]["weights"] == smooth[1]["weights"]
    assert [one["starts"] for one in smooth] == [[(0, 0)]] * 2
    for before, after in zip(smooth, broken, strict=True):
        assert after["starts"] == [(0, 0), (fail_at // 6, fail_at)] and after["resets"] == [2]
        assert after["weights"] == before["weights"] and after["rate"] == before["rate"]
    assert broken[0]["seen"] == smooth[0]["seen"]  # rank 1 has taken over the root's
    for epoch in (slice(12), slice(12, 24)):
        assert sorted(smooth[0]["seen"][epoch] + smooth[1]["seen"][epoch]) == list(range(24))


def test_an_error_that_comes_again_is_raised_on_all_ranks(ranks):
    for told in ranks(2).run(_train, 3, True):
        assert "the ranks disagree on the shape" in told["error"]
        assert told["starts"] == [(0, 0), (0, 3)]


def _states() -> dict:
    import horovod.torch as hvd
    import numpy as np
    import torch
    from horovod.common.exceptions import HostsUpdatedInterrupt
    from horovod.torch.elastic.sampler import ElasticSampler
    from horovod.torch.elastic.state import get_handler_registry, set_handler_registry

    hvd.init()
    me = hvd.rank()
    first, second = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    told = {}
    plain = hvd.elastic.TorchState(first, other=second, number=me, items=[me])
    plain.sync()
    told["synced"] = [plain.number, list(plain.items), float(first.bias), float(second.bias)]
    plain.items.append("more")
    plain.model = torch.nn.Linear(1, 1, bias=False)  # its weight counts as committed
    weight = float(plain.model.weight)
    torch.nn.init.zeros_(plain.model.weight)
    plain.restore()
    told["restored"] = plain.items == [0] and float(plain.model.weight) == weight

    calls = []

    @hvd.elastic.run
    def interrupted(state):
        calls.append(state.number)
        if len(calls) < 3:
            state.number += 1
            raise HostsUpdatedInterrupt(skip_sync=len(calls) == 1)
        return "over"

    told["interrupted"] = interrupted(plain), calls

    @hvd.elastic.run
    def wrong(state):
        raise ValueError("a mistake of the user's")

    try:
        wrong(plain)
    except ValueError as error:
        told["raised"] = str(error)

    sampler = ElasticSampler(np.zeros(11), shuffle=False)
    told["all"], told["length"] = list(sampler), len(sampler)
    sampler.record_batch(0, 2)
    saved = sampler.state_dict()
    sampler.reset()
    told["rest"] = list(sampler)
    again = ElasticSampler(np.zeros(11), shuffle=False)
    again.load_state_dict(saved)
    told["same"] = list(again) == told["rest"]

    few = ElasticSampler(np.zeros(1))
    few.num_replicas, few.total_size = 4, 4
    told["few"] = []
    for few.rank in range(4):
        told["few"] += list(few)

    before = get_handler_registry()
    set_handler_registry([])
    bare = hvd.elastic.TorchState(first)
    set_handler_registry(before)
    told["registry"] = not bare._handlers and get_handler_registry() is before and len(before) == 3
    return told


def test_states_and_samplers(ranks):
    zero, one = ranks(2).run(_states)
    assert zero["synced"] == one["synced"] and zero["synced"][:2] == [0, [0]]
    for told in (zero, one):
        assert told["restored"] and told["same"] and told["registry"]
        # What was not committed is lost, since the root's last commit counts.
        assert told["interrupted"] == ("over", [0, 0, 0])
        assert told["raised"] == "a mistake of the user's"
        assert told["few"] == [0] * 4
    assert zero["all"] == [0, 2, 4, 6, 8, 10] and one["all"] == [1, 3, 5, 7, 9, 0]
    assert zero["length"] == one["length"] == 6
    assert zero["rest"] == [4, 6, 8, 10] and one["rest"] == [5, 7, 9, 4]


def _scaler() -> list:
    """A failure between backward() and step(), with gradients that are scaled and unscaled."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    state = hvd.elastic.TorchState(model, optimizer, scaler=scaler)
    starts = []

    @hvd.elastic.run
    def train(state):
        starts.append(1)
        scaler.scale(model(torch.ones(1, 1)).sum()).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        if len(starts) == 1:
            hvd.allreduce(torch.ones(2 + hvd.rank()), name="wrong")
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()

    train(state)
    return [round(float(model.weight), 4), len(starts)]


def test_a_scaler_begins_its_step_anew(ranks):
    assert ranks(2).run(_scaler) == [[0.9, 2]] * 2
