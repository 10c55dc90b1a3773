"""The addresses of tensors, here in host memory; test_gpu.py uses them on GPUs."""


def _addresses() -> list[bool]:
    """For each dtype and shape: whether the numbers are where they are said to be."""
    import ctypes

    import numpy as np
    import tensorflow as tf

    from hvdlite.tensorflow import internals

    found = [internals.knows_addresses()]
    for dtype in ("float16", "float32", "float64", "int8", "int32", "int64"):
        for shape in ((), (1,), (3, 5), (1000,)):
            numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
            tensor = tf.constant(numbers) + 1
            address = internals.address_of(tensor)
            memory = (ctypes.c_byte * numbers.nbytes).from_address(address)
            there = np.frombuffer(memory, dtype).reshape(shape)
            found.append(bool((there == numbers + 1).all()))
    _, second = tf.split(tf.range(8, dtype=tf.float32), 2)  # both in one memory
    there = (ctypes.c_float * 4).from_address(internals.address_of(second))
    found.append(list(there) == [4, 5, 6, 7])
    return found


def test_the_numbers_are_there(ranks):
    assert all(ranks(2).run(_addresses)[0])
