"""The callbacks, on Keras 3 and on tf_keras, which this file runs with both (see conftest.py)."""

import pytest


def model_and_data(hvd, keras, optimizer, layers=(), rows: int = 64):
    """A small model without an input shape, and this rank's data."""
    import numpy as np

    keras.utils.set_random_seed(hvd.rank())
    numbers = np.random.default_rng(hvd.rank())
    x = numbers.normal(size=(rows, 4)).astype("float32")
    y = (x.sum(1) > 0).astype("int32")
    model = keras.Sequential([*layers, keras.layers.Dense(8), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(hvd.DistributedOptimizer(optimizer), loss, metrics=["accuracy"])
    return model, x, y


def variables_of(model) -> list[list]:
    optimizer = model.optimizer.variables
    optimizer = optimizer() if callable(optimizer) else optimizer
    return [v.numpy().tolist() for v in [*model.variables, *optimizer]]


def binding():
    import tensorflow as tf

    import hvdlite.tensorflow.keras as hvd

    hvd.init()
    return hvd, tf.keras


def _broadcast() -> list:
    """Variables that come with the first batch, slots with the first update, batch norm."""
    hvd, keras = binding()
    layers = [keras.layers.BatchNormalization()]
    model, x, y = model_and_data(hvd, keras, keras.optimizers.Adam(0.01), layers, rows=16)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(x, y, batch_size=16, epochs=1, verbose=0, callbacks=[callback])
    found = [variables_of(model)]
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[callback])  # the same object
    moving = {id(v) for v in model.layers[0].non_trainable_variables}  # each rank's own by now
    found.append([v.numpy().tolist() for v in model.variables if id(v) not in moving])
    return found


def test_all_variables_are_the_roots_after_the_first_batch(keras_ranks):
    results = keras_ranks.run(_broadcast, timeout=120)
    assert results[0] == results[1]
    assert len(results[0][0]) > 8


def _local_variables() -> list:
    hvd, keras = binding()
    model, x, y = model_and_data(hvd, keras, keras.optimizers.SGD(0.0), rows=16)
    model.build((None, 4))
    kept = model.layers[0].kernel
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1, local_variables=kept)
    model.fit(x, y, batch_size=16, epochs=1, verbose=0, callbacks=[callback])
    with pytest.raises(ValueError, match="must be variables"):
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=["kernel"])
    return [kept.numpy().tolist(), model.layers[1].kernel.numpy().tolist()]


def test_local_variables_stay(keras_ranks):
    (local0, shared0), (local1, shared1) = keras_ranks.run(_local_variables, timeout=120)
    assert shared0 == shared1 and local0 != local1


def _new_layers() -> list[float]:
    """The weight of a layer that is another one in each epoch, after the first batch of it."""
    import gc

    hvd, keras = binding()
    model, _, _ = model_and_data(hvd, keras, keras.optimizers.SGD(0.0))
    model.build((None, 4))
    callback, weights = hvd.callbacks.BroadcastGlobalVariablesCallback(0), []
    callback.set_model(model)
    callback.on_train_begin()
    for epoch in range(50):
        model.pop()
        gc.collect()
        model.add(keras.layers.Dense(2, bias_initializer=keras.initializers.Constant(hvd.rank())))
        callback.on_epoch_begin(epoch)
        callback.on_batch_end(0)
        weights.append(model.layers[-1].bias.numpy()[0].item())
    return weights


def test_a_new_variable_is_not_taken_for_one_that_is_gone(keras_ranks):
    assert keras_ranks.run(_new_layers, timeout=120) == [[0.0] * 50] * 2


def _metrics() -> list:
    """Validation on rank 0 only, with a callback that adds to the logs there."""
    import warnings

    hvd, keras = binding()
    rank = hvd.rank()

    class Adds(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["mine"] = float(rank)
            if rank == 0:
                logs["a_first"] = 7.0

    model, x, y = model_and_data(hvd, keras, keras.optimizers.SGD(0.1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(
            x,
            y,
            epochs=2,
            verbose=0,
            callbacks=[Adds(), hvd.callbacks.MetricAverageCallback()],
            validation_data=(x, y) if rank == 0 else None,
        ).history
    told = [str(each.message) for each in caught if "is not averaged" in str(each.message)]
    return [history["loss"], history["mine"], history.get("a_first"), told]


def test_metrics_are_averaged_by_name(keras_ranks):
    zero, one = keras_ranks.run(_metrics, timeout=120)
    assert zero[0] == one[0] and zero[1] == one[1] == [0.5, 0.5]
    assert zero[2] == [7.0, 7.0] and one[2] is None
    assert any("'a_first' is not averaged: there is none on rank 1" in each for each in zero[3])
    assert one[3] == []


def _rates(cases: list) -> list:
    hvd, keras = binding()
    found = []
    for rate, epochs, first_epoch, make in cases:
        seen: list[float] = []
        moments: list[float] = []

        class Sees(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None, seen=seen, moments=moments):
                rates = self.model.optimizer.learning_rate
                seen.append(round(float(rates.numpy()), 6))
                momentum = self.model.optimizer.momentum
                moments.append(float(getattr(momentum, "numpy", lambda m=momentum: m)()))

        model, x, y = model_and_data(hvd, keras, keras.optimizers.SGD(rate, momentum=0.9))
        model.fit(
            x,
            y,
            batch_size=16,  # 4 steps an epoch
            epochs=epochs,
            initial_epoch=first_epoch,
            verbose=0,
            shuffle=False,
            callbacks=[*_callbacks(hvd, make), Sees()],
        )
        found.append([seen, sorted(set(moments))])
    return found


def _callbacks(hvd, make: str) -> list:
    kinds = hvd.callbacks
    warmup = kinds.LearningRateWarmupCallback
    schedule = kinds.LearningRateScheduleCallback
    return {
        "warm-up, then a step": lambda: [
            warmup(initial_lr=0.4, warmup_epochs=2),
            schedule(initial_lr=0.4, multiplier=0.1, start_epoch=2, end_epoch=3, staircase=True),
            schedule(initial_lr=0.4, multiplier=lambda epoch: 0.01, start_epoch=3),
        ],
        "a constant": lambda: [schedule(initial_lr=1.0, multiplier=0.5, start_epoch=1)],
        "without a rate": lambda: [warmup(warmup_epochs=1)],
        "a schedule without a rate": lambda: [schedule(multiplier=0.5)],
    }[make]()


WARM = [0.225, 0.25, 0.275, 0.3, 0.325, 0.35, 0.375, 0.4]


def test_rates_are_those_of_horovod(keras_ranks):
    cases = [
        (0.4, 4, 0, "warm-up, then a step"),
        (0.3, 4, 1, "warm-up, then a step"),  # resumed, with the stored rate in the optimizer
        (0.004, 4, 3, "warm-up, then a step"),
        (1.0, 4, 0, "a constant"),
        (0.8, 1, 0, "without a rate"),
        (0.8, 2, 0, "a schedule without a rate"),
    ]
    for found in keras_ranks.run(_rates, cases, timeout=240):
        # multiplier ** (epoch - start_epoch) is 1 in the start epoch
        whole = [*WARM, *[0.4] * 4, *[0.004] * 4]
        assert found[0][0] == pytest.approx(whole, abs=1e-6)
        assert found[1][0] == pytest.approx(whole[4:], abs=1e-6)
        assert found[2][0] == pytest.approx(whole[12:], abs=1e-6)
        assert found[3][0] == pytest.approx([*[1.0] * 8, *[0.5] * 4, *[0.25] * 4], abs=1e-6)
        assert found[4][0] == pytest.approx([0.5, 0.6, 0.7, 0.8], abs=1e-6)
        assert found[5][0] == pytest.approx([*[0.8] * 4, *[0.4] * 4], abs=1e-6)
        for _, moments in found:
            assert moments == [pytest.approx(0.9)]  # back at its value after each batch


def _momentum() -> list:
    """The moves of a weight with a gradient of 1 when the rate halves before step 4 of 6."""
    import numpy as np

    hvd, keras = binding()
    found = []
    kinds = [keras.optimizers.SGD]
    if not hasattr(keras, "__version__"):  # tf_keras
        kinds.append(keras.optimizers.legacy.SGD)
    for kind in kinds:
        optimizer = kind(0.1, momentum=0.9)
        model = keras.Sequential([keras.layers.Dense(1, use_bias=False)])
        model.build((None, 1))
        model.compile(hvd.DistributedOptimizer(optimizer), loss=lambda truth, output: output)
        schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5, staircase=True)
        weights = [model.get_weights()[0].item()]

        class Sees(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None, weights=weights):
                weights.append(self.model.get_weights()[0].item())

        ones = np.ones((3, 1), "float32")
        model.fit(ones, ones, 1, epochs=2, verbose=0, callbacks=[schedule, Sees()])
        found.append(np.diff(weights).tolist())
    return found


def test_momentum_is_corrected_where_the_rate_changes(keras_ranks):
    moves: list[float] = []
    rates, factors = [0.1] * 3 + [0.05] * 3, [0.9] * 3 + [0.45] + [0.9] * 2
    for rate, factor in zip(rates, factors, strict=True):
        moves.append(factor * (moves[-1] if moves else 0) - rate)
    for found in keras_ranks.run(_momentum, timeout=120):
        for each in found:
            assert each == pytest.approx(moves, abs=1e-5)


def _schedule_object() -> str:
    hvd, keras = binding()
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model, x, y = model_and_data(hvd, keras, keras.optimizers.SGD(decay))
    model.fit(x, y, epochs=1, verbose=0)  # wrapping alone works
    with pytest.raises(Exception) as told:
        callback = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5)
        model.fit(x, y, epochs=1, verbose=0, callbacks=[callback])
    return str(told.value)


def test_a_schedule_object_is_no_rate_to_set(keras_ranks):
    for told in keras_ranks.run(_schedule_object, timeout=120):
        assert "schedule" in told.lower()


def _best(folder: str) -> bool:
    import os

    hvd, keras = binding()
    model, x, y = model_and_data(hvd, keras, keras.optimizers.SGD(0.1))
    callback = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    callback.filepath = os.path.join(folder, f"best-{hvd.rank()}.keras")
    model.fit(x, y, epochs=1, verbose=0, callbacks=[callback])
    return os.path.exists(callback.filepath)


def test_the_best_model_is_kept(keras_ranks, tmp_path):
    assert keras_ranks.run(_best, str(tmp_path), timeout=120) == [True, True]
