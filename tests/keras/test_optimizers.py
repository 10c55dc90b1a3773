"""Wrapped Keras optimizers train as one process on the joined batch."""

import pytest
from keras_training import binding, numbers, small, train, train_alone, weights

KERAS3 = ["SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Adafactor", "Nadam"]
KERAS3 += ["Ftrl", "Lion", "Lamb", "Muon"]
LEGACY = ["SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Nadam", "Ftrl"]


def steps_with(hvd, keras, optimizer, distributed: bool) -> list[float]:
    """Weights after three steps with this rank's gradients, or with the mean of all ranks'."""
    import numpy as np
    import tensorflow as tf

    model = small(keras)
    generator = np.random.default_rng(4)

    @tf.function
    def step(gradients):
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for _ in range(3):
        shapes = [(2, *variable.shape) for variable in model.trainable_variables]
        both = [generator.normal(size=shape).astype("float32") for shape in shapes]
        step([tf.constant(g[hvd.rank()] if distributed else g.mean(0)) for g in both])
    return weights(model)


def _every_optimizer(wanted: list, legacy_wanted: list) -> list[str]:
    hvd, keras = binding()
    wrong, kinds = [], {}
    if hasattr(keras.optimizers, "Muon"):  # Keras 3
        kinds = {name: getattr(keras.optimizers, name) for name in wanted}
    else:
        for name in legacy_wanted:
            kinds[name] = getattr(keras.optimizers, name)
            old = getattr(keras.optimizers.legacy, name, None)
            kinds.update({f"legacy {name}": old} if old else {})
    for name, kind in kinds.items():
        ours = steps_with(hvd, keras, hvd.DistributedOptimizer(kind(learning_rate=0.01)), True)
        if hvd.allgather_object(ours)[0] != ours:
            wrong.append(f"{name}: not the same on all ranks")
        if ours != pytest.approx(steps_with(hvd, keras, kind(learning_rate=0.01), False), abs=2e-5):
            wrong.append(f"{name}: not as one process")
        wrapped = hvd.DistributedOptimizer(kind(learning_rate=0.01))
        if not isinstance(wrapped, kind) or type(wrapped).__name__ != kind.__name__:
            wrong.append(f"{name}: {type(wrapped)}")
    return wrong


@pytest.mark.slow
def test_every_optimizer_steps_as_one_process(keras_ranks):
    for wrong in keras_ranks.run(_every_optimizer, KERAS3, LEGACY, timeout=280):
        assert wrong == []


def _options() -> list[str]:
    """What compile and DistributedOptimizer offer; each must give one process's weights."""
    hvd, keras = binding()
    wrong = []

    def sgd(**options):
        return lambda: keras.optimizers.SGD(0.05, momentum=0.9, **options)

    plain, clipped = sgd(), sgd(global_clipnorm=0.1)
    expected = {make: train_alone(hvd, keras, make) for make in (plain, clipped)}
    cases = {
        "clipped": (clipped, {}, {}),
        "jit_compile": (plain, {}, {"jit_compile": True}),
        "steps_per_execution": (plain, {}, {"steps_per_execution": 3}),
        "run_eagerly": (plain, {}, {"run_eagerly": True}),
        "predivide": (plain, {"gradient_predivide_factor": 2.0}, {}),
        "groups": (plain, {"groups": 2}, {}),
        "fp16": (plain, {"compression": hvd.Compression.fp16}, {}),
    }
    for name, (make, options, compiled) in cases.items():
        alone = expected[make]
        ours = train(
            hvd,
            keras,
            make,
            lambda optimizer, options=options: hvd.DistributedOptimizer(optimizer, **options),
            parts=True,
            **compiled,
        )
        if hvd.allgather_object(ours)[0] != ours:
            wrong.append(f"{name}: not the same on all ranks")
        if ours != pytest.approx(alone, abs=2e-3 if name == "fp16" else 2e-5):
            wrong.append(f"{name}: not as one process")
    return wrong


@pytest.mark.slow
def test_options_of_compile_and_of_the_wrapper(keras_ranks):
    for wrong in keras_ranks.run(_options, timeout=180):
        assert wrong == []


def _passes(average: bool) -> tuple[list, list]:
    """Two batches a step on each rank are as one batch of four times the rows."""
    hvd, keras = binding()
    x, y = numbers()
    results = []
    for distributed in (True, False):
        model = small(keras)
        # The sum of two means is twice their mean.
        optimizer = keras.optimizers.SGD(0.05 if distributed or average else 0.1)
        if distributed:
            optimizer = hvd.DistributedOptimizer(
                optimizer, backward_passes_per_step=2, average_aggregated_gradients=average
            )
        model.compile(optimizer, "mse")
        for step in range(3):
            rows = x[step] if not distributed else x[step, hvd.rank()]
            answers = y[step] if not distributed else y[step, hvd.rank()]
            if not distributed:
                model.train_on_batch(rows.reshape(-1, 4), answers.reshape(-1, 2))
            else:
                for half in (slice(0, 4), slice(4, 8)):
                    model.train_on_batch(rows[half], answers[half])
        results.append(weights(model))
    return tuple(results)


@pytest.mark.parametrize("average", [True, False])
def test_gradients_of_several_batches_are_added_up_first(keras_ranks, average):
    for ours, alone in keras_ranks.run(_passes, average, timeout=120):
        assert ours == pytest.approx(alone, abs=2e-5)


def _after_local_variables_that_are_gone() -> list[float]:
    """The gradient's effect on new variables, which may lie where the local ones were."""
    import tensorflow as tf

    hvd, keras = binding()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    for _ in range(100):
        optimizer.register_local_var(tf.Variable([0.0]))
    new = [tf.Variable([0.0]) for _ in range(100)]
    optimizer.apply_gradients([(tf.constant([float(hvd.rank())]), each) for each in new])
    return [each.numpy().item() for each in new]


def test_a_new_variable_is_not_taken_for_a_local_one_that_is_gone(keras_ranks):
    results = keras_ranks.run(_after_local_variables_that_are_gone, timeout=120)
    assert results == [[-0.5] * 100] * 2


def _wrong() -> None:
    hvd, keras = binding()
    sgd = keras.optimizers.SGD(0.1)
    cases = {
        "not 'adam'": (TypeError, lambda: hvd.DistributedOptimizer("adam")),
        "Average or hvd.Sum": (ValueError, lambda: hvd.DistributedOptimizer(sgd, op=hvd.Adasum)),
        "must be a positive": (ValueError, lambda: hvd.DistributedOptimizer(sgd, groups=0)),
        "backward_passes_per_step": (
            ValueError,
            lambda: hvd.DistributedOptimizer(sgd, backward_passes_per_step=0),
        ),
        "never 0": (
            ValueError,
            lambda: hvd.DistributedOptimizer(sgd, gradient_predivide_factor=0),
        ),
        "wrap it once": (
            ValueError,
            lambda: hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd)),
        ),
    }
    for words, (kind, call) in cases.items():
        with pytest.raises(kind, match=words):
            call()


def test_wrong_arguments_say_what_to_do(keras_ranks):
    keras_ranks.run(_wrong)


def test_wrong_arguments_on_pytorch_too(torch_ranks):
    torch_ranks.run(_wrong)


def _on_torch() -> list:
    """Keras on PyTorch: train as one process, with the callbacks."""
    import keras

    import hvdlite.keras as hvd

    hvd.init()
    assert keras.backend.backend() == "torch"
    wrong = []
    for name in ("SGD", "Adam"):

        def make(name=name):
            return getattr(keras.optimizers, name)(learning_rate=0.01)

        alone = train_alone(hvd, keras, make)
        ours = train(hvd, keras, make, hvd.DistributedOptimizer, parts=True)
        if hvd.allgather_object(ours)[0] != ours:
            wrong.append(f"{name}: not the same on all ranks")
        if ours != pytest.approx(alone, abs=2e-5):
            wrong.append(f"{name}: not as one process")
    model = small(keras, seed=hvd.rank())
    model.compile(hvd.DistributedOptimizer(make()), "mse")
    x, y = (part[:, hvd.rank()].reshape(-1, part.shape[-1]) for part in numbers())
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.01, warmup_epochs=1),
    ]
    history = model.fit(x, y, epochs=2, verbose=0, callbacks=callbacks).history
    return [wrong, history["loss"], weights(model), float(hvd.allreduce(float(hvd.rank())))]


@pytest.mark.slow
def test_keras_on_pytorch(torch_ranks):
    zero, one = torch_ranks.run(_on_torch, timeout=180)
    assert zero == one and zero[0] == [] and zero[3] == 0.5
