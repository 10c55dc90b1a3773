"""TensorFlow's own C++, called by its names.

These functions are in its wheels, but belong to no interface that it promises to keep. So whether
they are there has to be asked first.
"""

import ctypes
import functools
import platform
from pathlib import Path
from typing import Any

import tensorflow as tf

_REGISTRY = "_ZN3xla24CustomCallTargetRegistry"
_GLOBAL = f"{_REGISTRY}6GlobalEv"
_REGISTER = f"{_REGISTRY}8RegisterERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPvS8_"
_HANDLE_OF = "_Z18EagerTensor_HandlePK7_object"
_TENSOR_OF = "_ZNK10tensorflow12TensorHandle6TensorEPPKNS_6TensorE"
_DATA_OF = "_ZNK10tensorflow6Tensor4dataEv"


class String(ctypes.Structure):
    """std::string of the GNU library: up to 15 characters lie in the string itself."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("own", ctypes.c_char * 16))


@functools.cache
def _function(library: str, name: str, result: Any, *arguments: Any) -> Any:
    """A function of one of TensorFlow's libraries; None where this build has none."""
    # Python's lock is kept for what works on Python's objects.
    load = ctypes.PyDLL if "pywrap" in library else ctypes.CDLL
    try:
        function = load(str(Path(tf.sysconfig.get_lib()) / library))[name]
    except (OSError, AttributeError):
        return None
    function.restype, function.argtypes = result, arguments
    return function


def _registry() -> tuple[Any, Any]:
    """XLA's table of C functions, and what adds one to it."""
    pointer, core = ctypes.c_void_p, "libtensorflow_cc.so.2"
    return _function(core, _GLOBAL, pointer), _function(core, _REGISTER, None, *[pointer] * 4)


def has_registry() -> bool:
    """Whether `register` works with this TensorFlow."""
    return None not in _registry()


def register(target: bytes, where: bytes, handler: Any) -> None:
    """Let XLA's programs find a C function by its name.

    `where` is one of XLA's platforms, "Host" or "CUDA".
    """
    table, add = _registry()
    held = [ctypes.create_string_buffer(each) for each in (target, where)]
    names = [String(ctypes.addressof(each), len(each) - 1) for each in held]
    first, second = (ctypes.addressof(each) for each in names)
    add(table(), first, ctypes.cast(handler, ctypes.c_void_p), second)


@functools.cache
def _address_functions() -> tuple[Any, ...]:
    """From a Python object to its handle, from that to the tensor, and to its memory."""
    pointer = ctypes.c_void_p
    python, core = "python/lib_pywrap_tensorflow_common.so", "libtensorflow_cc.so.2"
    return (
        _function(python, _HANDLE_OF, pointer, ctypes.py_object),
        _function(core, _TENSOR_OF, None, pointer, pointer, pointer),
        _function("libtensorflow_framework.so.2", _DATA_OF, pointer, pointer),
    )


def knows_addresses() -> bool:
    """Whether `address_of` works with this TensorFlow."""
    # Elsewhere the place for a returned Status is no argument.
    return platform.machine() == "x86_64" and None not in _address_functions()


def address_of(tensor: tf.Tensor) -> int:
    """Where an eager tensor lies, at which the GPU may still be at work; it lives while that does.

    DLPack would wait for the GPU. Raises RuntimeError where what was to make the tensor has failed.
    """
    handle_of, tensor_of, data_of = _address_functions()
    status, found = ctypes.c_void_p(), ctypes.c_void_p()
    tensor_of(ctypes.addressof(status), handle_of(tensor), ctypes.addressof(found))
    if not found.value:
        raise RuntimeError(f"TensorFlow has no memory for {tensor.dtype.name}{tensor.shape}")
    return data_of(found.value) or 0
