"""Keras on PyTorch with the model on a GPU, for two ranks. Run with: pytest -m gpu"""

import pytest
from gpus import take_gpu
from keras_training import numbers, small, train, train_alone, weights

pytestmark = pytest.mark.gpu


def _start():
    """hvdlite.keras and keras, with this rank's GPU as the one that Keras computes on."""
    import importlib.util
    import sys

    found = importlib.util.find_spec("tensorflow")
    if found is None or found.origin is None:
        sys.modules["tensorflow"] = None  # not installed; what was found is a folder of tests

    import keras

    import hvdlite.keras as hvd

    hvd.init()
    take_gpu()
    assert keras.backend.backend() == "torch"
    return hvd, keras


def _where(model) -> set:
    """The devices of the model's variables and of its optimizer's."""
    return {str(each.value.device) for each in [*model.variables, *model.optimizer.variables]}


def _as_one_process(optimizer: str, options: dict) -> list:
    hvd, keras = _start()

    def wrap(plain):
        return hvd.DistributedOptimizer(plain, **options)

    def make():
        return getattr(keras.optimizers, optimizer)(learning_rate=0.01)

    alone = train_alone(hvd, keras, make)
    ours = train(hvd, keras, make, wrap, parts=True)
    return [ours, ours == pytest.approx(alone, abs=1e-4)]


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("options", [{}, {"gradient_predivide_factor": 2.0}])
def test_trains_as_one_process(torch_ranks, optimizer, options):
    zero, one = torch_ranks.run(_as_one_process, optimizer, options, timeout=180)
    assert zero == one
    assert zero[1]


def _reduced_where(path: str) -> list:
    """A step under the timeline, which tells by what each gradient was reduced."""
    import json

    hvd, keras = _start()
    model = small(keras)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    x, y = (part[:, hvd.rank()].reshape(-1, part.shape[-1]) for part in numbers())
    model.train_on_batch(x, y)
    hvd.start_timeline(path)
    model.train_on_batch(x, y)
    hvd.stop_timeline()
    if hvd.rank():
        return [sorted(_where(model))]
    with open(path) as file:
        names = [event.get("name", "") for event in json.load(file)]
    by = {name for name in names if name.endswith("_ALLREDUCE") and "NEGOTIATE" not in name}
    return [sorted(_where(model)), sorted(by)]


def test_gradients_are_reduced_on_the_gpu(torch_ranks, tmp_path):
    import torch

    zero, one = torch_ranks.run(_reduced_where, str(tmp_path / "timeline.json"), timeout=180)
    assert zero == [["cuda:0"], ["NCCL_ALLREDUCE"]]
    assert one == [["cuda:1" if torch.cuda.device_count() > 1 else "cuda:0"]]


def _callbacks() -> list:
    hvd, keras = _start()
    rank = hvd.rank()
    model = small(keras, seed=rank)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9)), "mse")
    x, y = (part[:, rank].reshape(-1, part.shape[-1]) for part in numbers())
    own = []
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: own.append(logs["loss"])),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.01, warmup_epochs=1),
    ]
    history = model.fit(x, y, epochs=2, batch_size=8, verbose=0, callbacks=callbacks).history
    momenta = [each.numpy().tolist() for each in model.optimizer.variables]
    return [own, history["loss"], history["lr"], weights(model), momenta, len(_where(model))]


def test_callbacks_bring_ranks_together(torch_ranks):
    (own0, *zero), (own1, *one) = torch_ranks.run(_callbacks, timeout=180)
    assert zero == one
    losses, rates, _, _, devices = zero
    assert own0 != own1
    assert losses == pytest.approx([(a + b) / 2 for a, b in zip(own0, own1, strict=True)])
    assert rates == pytest.approx([0.01, 0.01]) and devices == 1


def _all_skip() -> list:
    """Mixed precision, and a gradient that is not finite on one rank."""
    import numpy as np

    hvd, keras = _start()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = small(keras)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
        assert hasattr(model.optimizer, "inner_optimizer")  # Keras scales the loss by itself
        x, y = (part[:, hvd.rank()].reshape(-1, part.shape[-1]) for part in numbers())
        model.fit(x, y, batch_size=8, epochs=1, verbose=0, shuffle=False)
        before = weights(model)
        bad = x[:8].copy()
        if hvd.rank() == 1:
            bad[0] = np.nan
        model.train_on_batch(bad, y[:8])
        return [before, weights(model) == before, bool(np.isfinite(before).all())]
    finally:
        keras.mixed_precision.set_global_policy("float32")


def test_all_ranks_skip_a_step_together(torch_ranks):
    zero, one = torch_ranks.run(_all_skip, timeout=180)
    assert zero == one and zero[1:] == [True, True]


def _values() -> list[bool]:
    """The functions of hvdlite.keras on tensors of a GPU, whose results stay there."""
    import torch

    hvd, keras = _start()
    mine = torch.arange(4.0, device="cuda") + hvd.rank()
    results = [hvd.allreduce(mine), hvd.allgather(mine), hvd.broadcast(mine, 1)]
    results.append(hvd.reducescatter(mine, op=hvd.Sum))
    expected = [[0.5, 1.5, 2.5, 3.5], [0, 1, 2, 3, 1, 2, 3, 4], [1, 2, 3, 4]]
    expected.append([[1, 3], [5, 7]][hvd.rank()])
    pairs = zip(results, expected, strict=True)
    return [each.is_cuda and each.tolist() == values for each, values in pairs]


def test_values_stay_on_the_gpu(torch_ranks):
    assert torch_ranks.run(_values, timeout=180) == [[True] * 4] * 2
