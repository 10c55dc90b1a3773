"""Where a tensor of eager code lies in the memory of its GPU.

DLPack tells it, and waits first until the GPU has made the tensor. Without that wait there is only
TensorFlow's own C++, whose functions are called by their names here: they are in its wheels, but
belong to no interface that it promises to keep. So `is_known` has to be asked.
"""

import ctypes
import functools
import platform
from pathlib import Path
from typing import Any

import tensorflow as tf


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def when_made(tensor: tf.Tensor) -> tuple[int, Any]:
    """The address, once the GPU has made the tensor, and what keeps it valid."""
    capsule = tf.experimental.dlpack.to_dlpack(tensor)
    held = _DLTensor.from_address(_pointer_of(capsule, b"dltensor"))
    return (held.data or 0) + held.offset, (tensor, capsule)


@functools.cache
def _functions() -> tuple[Any, Any, Any] | None:
    """From a Python object to its handle, from that to TensorFlow's tensor, to its address."""
    if platform.machine() != "x86_64":  # where the place for a returned Status is an argument
        return None
    folder = Path(tf.sysconfig.get_lib())
    try:
        of_object = ctypes.PyDLL(str(folder / "python" / "lib_pywrap_tensorflow_common.so"))
        handle = of_object["_Z18EagerTensor_HandlePK7_object"]
        core = ctypes.CDLL(str(folder / "libtensorflow_cc.so.2"))
        tensor = core["_ZNK10tensorflow12TensorHandle6TensorEPPKNS_6TensorE"]
        framework = ctypes.CDLL(str(folder / "libtensorflow_framework.so.2"))
        data = framework["_ZNK10tensorflow6Tensor4dataEv"]
    except (OSError, AttributeError):
        return None
    handle.restype, handle.argtypes = ctypes.c_void_p, [ctypes.py_object]
    tensor.restype, tensor.argtypes = None, [ctypes.c_void_p] * 3
    data.restype, data.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return handle, tensor, data


def is_known() -> bool:
    """Whether `of` works with this TensorFlow."""
    return _functions() is not None


def of(tensor: tf.Tensor) -> int:
    """The address of a tensor that the GPU may still be at work on; it lives while that does.

    Raises RuntimeError where TensorFlow has no tensor, since what was to make it has failed.
    """
    handle, tensor_of, data = _functions()
    status, found = ctypes.c_void_p(), ctypes.c_void_p()
    tensor_of(ctypes.addressof(status), handle(tensor), ctypes.addressof(found))
    if not found.value:
        raise RuntimeError(f"TensorFlow has no memory for {tensor.dtype.name}{tensor.shape}")
    return data(found.value) or 0
