"""The addresses of tensors, here in host memory; test_gpu.py uses them on GPUs."""


def _addresses() -> list[bool]:
    """For each dtype and shape: whether both ways find the tensor, and its numbers are there."""
    import ctypes

    import numpy as np
    import tensorflow as tf

    from hvdlite.tensorflow import addresses

    found = [addresses.is_known()]
    for dtype in ("float16", "float32", "float64", "int8", "int32", "int64"):
        for shape in ((), (1,), (3, 5), (1000,)):
            numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
            tensor = tf.constant(numbers) + 1
            address = addresses.of(tensor)
            memory = (ctypes.c_byte * numbers.nbytes).from_address(address)
            same = np.frombuffer(memory, dtype).reshape(shape) == numbers + 1
            found.append(address == addresses.when_made(tensor)[0] and bool(same.all()))
    _, second = tf.split(tf.range(8, dtype=tf.float32), 2)  # both in one memory
    found.append(list((ctypes.c_float * 4).from_address(addresses.of(second))) == [4, 5, 6, 7])
    return found


def test_both_ways_find_the_numbers(ranks):
    assert all(ranks(2).run(_addresses)[0])
