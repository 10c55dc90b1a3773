"""Steps of one's own, mixed precision, local layers: what a step may be besides the usual."""

import pytest
from keras_training import binding, numbers, small, weights


def _own_train_step() -> list:
    """A tape in the model's own train_step, two optimizers on one persistent tape."""
    import tensorflow as tf

    hvd, keras = binding()
    rank = hvd.rank()

    class Twice(keras.Model):
        def __init__(self):
            super().__init__()
            self.a = self.add_weight(shape=(1,), initializer="ones", name="a")
            self.b = self.add_weight(shape=(1,), initializer="ones", name="b")
            self.other = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))

        def call(self, x):
            return x * self.a * self.b

        def train_step(self, data):
            with tf.GradientTape(persistent=True) as tape:
                loss_a = tf.reduce_sum(self.a * (rank + 1.0))
                loss_b = tf.reduce_sum(self.b * (rank + 3.0))
            for optimizer, loss, v in (
                (self.optimizer, loss_a, self.a),
                (self.other, loss_b, self.b),
            ):
                value = getattr(v, "value", v)
                value = v if callable(value) else value
                optimizer.apply_gradients([(tape.gradient(loss, value), v)])
            return {"mean": hvd.allreduce(loss_a, name="mean")}

    model = Twice()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    x = tf.ones([6, 1])
    history = model.fit(x, x, batch_size=2, epochs=1, verbose=0)
    return [float(model.a.numpy()[0]), float(model.b.numpy()[0]), history.history["mean"][-1]]


def test_own_train_steps_with_two_optimizers(keras_ranks):
    results = keras_ranks.run(_own_train_step, timeout=120)
    assert results[0] == results[1]
    a, b, mean = results[0]
    assert a == pytest.approx(1 - 3 * 0.1 * 1.5) and b == pytest.approx(1 - 3 * 0.1 * 3.5)
    assert mean == pytest.approx((1 - 2 * 0.1 * 1.5) * 1.5)


def _reduced_once() -> list[str]:
    """Where a train_step of one's own may reduce: in the tape, or in the optimizer."""
    import warnings

    import tensorflow as tf

    hvd, keras = binding()
    import hvdlite.tensorflow

    wrong = []

    class Once(keras.Model):
        def __init__(self, wrap_tape, op):
            super().__init__()
            self.a = self.add_weight(shape=(1,), initializer="ones", name="a")
            self.wrap_tape, self.op = wrap_tape, op

        def call(self, x):
            return x * self.a

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(self.a * (hvd.rank() + 1.0))
            if self.wrap_tape:
                tape = hvdlite.tensorflow.DistributedGradientTape(tape, op=self.op)
            (gradient,) = tape.gradient(loss, self.trainable_variables[:1])
            self.optimizer.apply_gradients([(gradient, self.trainable_variables[0])])
            return {"loss": loss}

    for op, factor in ((hvd.Average, 1.5), (hvd.Sum, 3.0)):
        for in_tape, in_optimizer in ((True, False), (False, True), (True, True)):
            model = Once(in_tape, op)
            optimizer = keras.optimizers.SGD(0.1)
            model.compile(hvd.DistributedOptimizer(optimizer, op=op) if in_optimizer else optimizer)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model.fit(tf.ones([6, 1]), batch_size=2, epochs=1, verbose=0)
            told = sum("use either" in str(each.message) for each in caught)
            twice = in_tape and in_optimizer
            moved = 3 * 0.1 * factor * (2 if twice and op == hvd.Sum else 1)
            case = f"op {op}, tape {in_tape}, optimizer {in_optimizer}"
            if float(model.a.numpy()[0]) != pytest.approx(1 - moved):
                wrong.append(f"{case}: {model.a.numpy()} instead of {1 - moved}")
            if told != twice:
                wrong.append(f"{case}: {told} warnings")
    return wrong


def test_gradients_are_reduced_in_the_tape_or_in_the_optimizer(keras_ranks):
    for wrong in keras_ranks.run(_reduced_once, timeout=120):
        assert wrong == []


def _mixed_precision(wrapped_inside: bool) -> list:
    """One gradient that is not finite, on one rank: all ranks skip the step."""
    import numpy as np

    hvd, keras = binding()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = small(keras)
        optimizer = keras.optimizers.SGD(0.01)
        scaling = keras.mixed_precision.LossScaleOptimizer
        if wrapped_inside:
            optimizer = scaling(hvd.DistributedOptimizer(optimizer))
        else:
            optimizer = hvd.DistributedOptimizer(scaling(optimizer))
        model.compile(optimizer, "mse")
        x, y = (part[:, hvd.rank()].reshape(-1, part.shape[-1]) for part in numbers())
        model.fit(x, y, batch_size=8, epochs=1, verbose=0, shuffle=False)
        before = weights(model)
        bad = x[:8].copy()
        if hvd.rank() == 1:
            bad[0] = np.nan
        model.train_on_batch(bad, y[:8])
        skipped = weights(model) == before
        model.fit(x, y, batch_size=8, epochs=1, verbose=0, shuffle=False)
        scale = getattr(model.optimizer, "dynamic_scale", None)
        scale = model.optimizer.loss_scale if scale is None else scale
        return [skipped, float(scale.numpy()), weights(model), bool(np.isfinite(before).all())]
    finally:
        keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize("wrapped_inside", [True, False])
def test_all_ranks_skip_a_step_together(keras_ranks, wrapped_inside):
    results = keras_ranks.run(_mixed_precision, wrapped_inside, timeout=120)
    assert results[0] == results[1]
    skipped, scale, after, finite = results[0]
    assert skipped and finite and scale == 2.0**14
    assert all(abs(value) < 100 for value in after)


def _mixed_accumulated() -> list:
    """Two batches a step; one of them, on one rank, has a gradient that is not finite."""
    import numpy as np

    hvd, keras = binding()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = small(keras)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), backward_passes_per_step=2)
        model.compile(keras.mixed_precision.LossScaleOptimizer(optimizer), "mse")
        x, y = (part[:, hvd.rank()].reshape(-1, part.shape[-1]) for part in numbers())
        before = weights(model)
        bad = x[:8].copy()
        if hvd.rank() == 1:
            bad[0] = np.nan
        for batch in (bad, x[:8]):
            model.train_on_batch(batch, y[:8])
        after_bad = weights(model)
        for _ in range(20):
            model.train_on_batch(x[:8], y[:8])
        scale = getattr(model.optimizer, "dynamic_scale", None)
        scale = model.optimizer.loss_scale if scale is None else scale
        end = weights(model)
        finite = bool(np.isfinite(after_bad).all() and np.isfinite(end).all())
        return [finite, float(scale.numpy()), end, end != before]
    finally:
        keras.mixed_precision.set_global_policy("float32")


def test_one_bad_batch_of_several_does_not_stay(keras_ranks):
    zero, one = keras_ranks.run(_mixed_accumulated, timeout=120)
    assert zero == one
    finite, scale, _, trained = zero
    assert finite and trained and scale == 2.0**14


def _local_layers() -> list:
    hvd, keras = binding()
    model = small(keras)
    local = model.layers[-1]
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=[local])
    model.compile(optimizer, "mse")
    x, y = (part[:, hvd.rank()].reshape(-1, part.shape[-1]) for part in numbers())
    model.fit(x, y, epochs=1, verbose=0)
    with pytest.raises(ValueError, match="local_layers"):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=["last"])
    return [layer.get_weights()[0].tolist() for layer in (model.layers[-2], local)]


def test_local_layers_stay_local(keras_ranks):
    (shared0, local0), (shared1, local1) = keras_ranks.run(_local_layers, timeout=120)
    assert shared0 != shared1 or local0 != local1  # layers behind a local one see it
    assert local0 != local1


def _tape_with_loss_scaling() -> list:
    """A tape of one's own, float16 inputs, and an optimizer that scales the loss."""
    import tensorflow as tf

    hvd, keras = binding()
    import hvdlite.tensorflow

    model = keras.Sequential([keras.layers.Dense(1, use_bias=False, dtype="mixed_float16")])
    model.build((None, 2))
    hvdlite.tensorflow.broadcast_variables(model.variables, 0)
    optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.5))
    if hasattr(optimizer, "build"):
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.cast(model(batch), tf.float32))
            scale = getattr(optimizer, "get_scaled_loss", None) or optimizer.scale_loss
            scaled = scale(loss)
        tape = hvdlite.tensorflow.DistributedGradientTape(tape)
        gradients = tape.gradient(scaled, model.trainable_variables)
        if hasattr(optimizer, "get_unscaled_gradients"):
            gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    start = weights(model)
    for _ in range(4):
        step(tf.fill([2, 2], tf.constant(0.25 + 0.5 * hvd.rank(), tf.float16)))
    return [a - b for a, b in zip(start, weights(model), strict=True)]


def test_a_tape_with_loss_scaling(keras_ranks):
    for moved in keras_ranks.run(_tape_with_loss_scaling, timeout=120):
        assert moved == pytest.approx([4 * 0.5 * 0.5] * 2, abs=1e-3)


def _two_models() -> list:
    """As in adversarial training: two models, two tapes and two optimizers in one step."""
    import tensorflow as tf

    hvd, keras = binding()
    import hvdlite.tensorflow

    results = []
    batches = tf.constant([[[1.0], [2.0]], [[3.0], [5.0]]])  # [rank, row, column]
    for distributed in (True, False):
        models = [small_line(keras, 2.0), small_line(keras, 3.0)]
        optimizers = [keras.optimizers.SGD(0.01, momentum=0.9), keras.optimizers.SGD(0.02)]
        for optimizer, model in zip(optimizers, models, strict=True):
            optimizer.build(model.trainable_variables)

        @tf.function
        def step(batch, models=models, optimizers=optimizers, distributed=distributed):
            maker, critic = models
            with tf.GradientTape() as tape1, tf.GradientTape() as tape2:
                made = maker(batch)
                loss1 = tf.reduce_mean(critic(made))
                loss2 = tf.reduce_mean((critic(batch) - made) ** 2)
            for tape, loss, model, optimizer in zip(
                (tape1, tape2), (loss1, loss2), models, optimizers, strict=True
            ):
                if distributed:
                    tape = hvdlite.tensorflow.DistributedGradientTape(tape)
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        for _ in range(3):
            step(batches[hvd.rank()] if distributed else tf.reshape(batches, [-1, 1]))
        results.append([*weights(models[0]), *weights(models[1])])
    return results


def small_line(keras, slope: float):
    """y = slope * x, as a model."""
    start = keras.initializers.Constant(slope)
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer=start)])
    model.build((None, 1))
    return model


def test_two_models_two_tapes_and_two_optimizers(keras_ranks):
    results = keras_ranks.run(_two_models, timeout=120)
    assert results[0] == results[1]
    ours, alone = results[0]
    assert ours == pytest.approx(alone, abs=1e-5)
