"""What can't be sent is an error of its call, before the ranks agree on anything."""

import pytest


def _not_to_be_sent(in_function: bool) -> dict[str, str]:
    import numpy as np
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    text = tf.constant(["a", "b"])
    with tf.Graph().as_default():
        elsewhere = tf.compat.v1.get_variable("v", initializer=[1.0])
    calls = {
        "strings: allreduce": lambda: hvd.allreduce(text),
        "strings: allgather": lambda: hvd.allgather(text),
        "strings: broadcast": lambda: hvd.broadcast(text, 0),
        "strings: alltoall": lambda: hvd.alltoall(text),
        "strings: reducescatter": lambda: hvd.reducescatter(text),
        "strings: slices": lambda: hvd.allreduce(tf.IndexedSlices(text, [0, 1])),
        "list: ragged": lambda: hvd.allreduce(tf.ragged.constant([[1.0], [2.0, 3.0]])),
        "sparse": lambda: hvd.allgather(tf.sparse.from_dense([1.0, 0.0])),
        "quantized": lambda: hvd.allgather(tf.cast([1], tf.qint8)),
        "objects": lambda: hvd.allreduce(np.array([object()])),
        "another graph": lambda: hvd.allreduce(elsewhere),
    }
    if not in_function:
        variable = tf.Variable(["x"])
        calls["strings: variables"] = lambda: hvd.broadcast_variables([variable], 0)
    told = {}
    for name, call in calls.items():
        with pytest.raises((TypeError, ValueError)) as error:
            tf.function(call)() if in_function else call()
        told[name] = f"{type(error.value).__name__}: {error.value}"
        assert hvd.allreduce(tf.ones([1]), op=hvd.Sum).numpy() == [2.0], name
    return told


@pytest.mark.parametrize("in_function", [False, True])
def test_what_can_not_be_sent(ranks, in_function):
    for told in ranks(2).run(_not_to_be_sent, in_function):
        for name in [name for name in told if name.startswith("strings")]:
            assert "takes tensors of numbers, not of dtype string" in told[name]
            assert told[name].startswith("TypeError") and "broadcast_object" in told[name]
        assert "value.to_tensor()" in told["list: ragged"]
        assert "tf.sparse.to_dense" in told["sparse"]
        assert "dtype qint8" in told["quantized"]


def _tapes(count: int) -> int:
    """How many reducers are kept after many process sets have come and gone."""
    import tensorflow as tf

    import hvdlite.tensorflow as hvd
    from hvdlite.tensorflow import tape as tapes

    hvd.init()
    variable = tf.Variable([1.0])
    for _ in range(count):
        added = hvd.add_process_set([0, 1])
        if added.included():
            with hvd.DistributedGradientTape(tf.GradientTape(), process_set=added) as tape:
                loss = variable * (1.0 + hvd.rank())
            assert tape.gradient(loss, [variable])[0].numpy() == [1.5]
        hvd.remove_process_set(added)
    return len(tapes._syncs)


def test_reducers_of_process_sets_that_are_gone_are_not_kept(ranks):
    before = ranks(3).run(_tapes, 1)
    assert ranks(3).run(_tapes, 6) == before
