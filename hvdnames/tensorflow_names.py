"""What TensorFlow 1 had and TensorFlow 2 has in `tensorflow.compat.v1` only.

A module of the program that asks for such a name gets it from there, and from then on its `tf` is
`tensorflow.compat.v1`. The first name that builds or runs a graph switches TensorFlow's second
behaviour off, as programs of TensorFlow 1 want it; those in `EAGER` don't, as programs of Keras
use them. Libraries are left alone: many look for old names to find TensorFlow's version.
"""

import dis
import functools
import importlib
import os
import re
import sys
import sysconfig
from collections.abc import Callable
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

from hvdnames import estimators, used
from hvdnames.imports import missing, no_attribute

# They have a meaning, or do no harm, outside a graph.
EAGER = """ConfigProto GPUOptions GraphDef GraphKeys GraphOptions OptimizerOptions RunMetadata
    RunOptions Session app estimator flags gfile logging reset_default_graph set_random_seed
    VERSION GIT_VERSION COMPILER_VERSION to_float to_double to_int32 to_int64 log
    disable_eager_execution disable_v2_behavior enable_v2_behavior enable_eager_execution
    enable_resource_variables""".split()  # noqa: SIM905
# What programs of TensorFlow 2 try first, for older versions, after they have computed something.
_INITIALIZERS = """global_variables_initializer local_variables_initializer variables_initializer
    initialize_all_variables""".split()  # noqa: SIM905
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
# A program that trains a model of Keras in a session of its own, as TensorFlow 1 did: Keras 3
# computes in no such graph, and the model is made before the first name that tells it.
_MODEL_IN_A_GRAPH = (
    r"\btf\.Session\(|MonitoredTrainingSession\(",
    r"\btf\.train\.\w*Optimizer\(",
    r"\bkeras(\.| import .*\b)(applications|layers|models|Model|Sequential)\b",
)
_NO_SUCH_PROGRAM = r"\bset_session\(|\bcompat\.v1\b|\bdisable_v2_behavior\b|\.fit\("
_MODES = {"EVAL": "eval", "PREDICT": "infer", "TRAIN": "train"}
_stays_eager = False


def _of_the_program(frame: FrameType | None) -> bool:
    """Whether code that asks for a name is the user's own, and not a library's."""
    path = frame.f_code.co_filename if frame else "<"
    at_hand = not path.startswith("<") or path in ("<stdin>", "<string>") or "ipython" in path
    installed = path.startswith(_LIBRARIES) or "site-packages" in path or "dist-packages" in path
    return at_hand and not installed


def _only_looks(frame: FrameType) -> bool:
    """Whether code calls hasattr() or getattr(), and so looks for what TensorFlow has."""
    # Python 3.11 calls from PRECALL, too, once it has seen a call a few times.
    return "CALL" in dis.opname[frame.f_code.co_code[frame.f_lasti]]


def _without_v2(name: str) -> None:
    import tensorflow as tf

    if _stays_eager or not tf.executing_eagerly() or name.rpartition(".")[2] in EAGER:
        return
    if tf.inside_function() or (name in _INITIALIZERS and _has_computed_eagerly()):
        return
    tf.compat.v1.disable_v2_behavior()


def prepare(program: str) -> None:
    """Before TensorFlow is imported: choose Keras 2 and graphs for a program that needs both."""
    wanted = all(re.search(each, program) for each in _MODEL_IN_A_GRAPH)
    if wanted and not re.search(_NO_SUCH_PROGRAM, program):
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
        PATCHES["tensorflow"] = _tensorflow_1


def _tensorflow_1(tf: ModuleType) -> None:
    _tensorflow(tf)
    tf.compat.v1.disable_v2_behavior()
    used("a model of Keras in a graph of TensorFlow 1 (TF_USE_LEGACY_KERAS=1)")


def _has_computed_eagerly() -> bool:
    """Whether variables and tensors of TensorFlow 2 may be about, which no graph takes."""
    context = importlib.import_module("tensorflow.python.eager.context").context_safe()
    return context is not None and context._initialized


def _first_version(tf: ModuleType, part: str, name: str) -> Any:
    """The name in a part ("", "train", ...) of tensorflow.compat.v1; raises AttributeError."""
    if (part, name) == ("", "estimator"):
        return _estimator()
    if part == "" and name in ("enable_eager_execution", "enable_v2_behavior"):
        return _enable_eager_execution
    if (part, name) == ("", "set_random_seed"):
        return _set_random_seed
    if (part, name) == ("", "layers"):
        return importlib.import_module("tf_keras.api._v1.keras.__internal__.legacy.layers")
    if (part, name) == ("", "contrib"):
        advice = "TensorFlow 2 has no tf.contrib: use what took its place (tf.keras, tf_slim, ...)"
        raise no_attribute(tf, name, advice)
    owner, asked = tf.compat.v1, tf
    for each in filter(None, part.split(".")):
        owner, asked = getattr(owner, each), getattr(asked, each)
    try:
        return getattr(owner, name)
    except AttributeError:
        raise no_attribute(asked, name) from None


def _look_up(tf: ModuleType, part: str, module: ModuleType, name: str) -> Any:
    frame = sys._getframe(2)  # whoever asks `module` for it
    while frame and frame.f_globals.get("__name__") in (__name__, "hvdnames.imports"):
        frame = frame.f_back
    while frame and frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back  # `from tensorflow import name`
    if name.startswith("_") or not _of_the_program(frame) or _only_looks(frame):
        raise no_attribute(module, name)
    importlib.import_module("tensorflow.compat.v1")  # by this name it is another module
    found = _first_version(tf, part, name)
    _without_v2(name)
    asked = ".".join(filter(None, ("tf", part, name)))
    as_first = not tf.executing_eagerly() or _stays_eager
    used(f"{asked} (and all of TensorFlow 1 from there on)" if as_first else asked)
    if as_first:
        for known, value in list(frame.f_globals.items()):
            if value is tf:
                frame.f_globals[known] = tf.compat.v1
        _complete(tf)
    return found


@functools.cache
def _complete(tf: ModuleType) -> None:
    """What tensorflow.compat.v1 lacks by itself beside Keras 3."""
    v1 = tf.compat.v1
    v1.enable_eager_execution = _enable_eager_execution
    try:
        v1.layers = _first_version(tf, "", "layers")
    except ImportError:
        pass  # tf_keras is not installed
    v1.estimator = _WhenAsked()
    v1.keras = tf.keras  # the one that the program imported before


def _set_random_seed(seed: int) -> None:
    """Seed the operations of eager code and of the graph, whichever it is going to be."""
    import tensorflow as tf

    tf.random.set_seed(seed)
    tf.compat.v1.get_default_graph().seed = seed


def _enable_eager_execution(*args: Any, **kwargs: Any) -> None:
    """Stay with eager execution, which is TensorFlow's own way now."""
    global _stays_eager
    _stays_eager = True
    tf = importlib.import_module("tensorflow")
    if not tf.executing_eagerly():
        tf.compat.v1.enable_v2_behavior()


def _estimator() -> Any:
    """`tf.estimator`: the package of that name where it is installed, else its constants."""
    return estimators.load() or _Constants(ModeKeys=SimpleNamespace(**_MODES))


class _WhenAsked:
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(_estimator(), name)


class _Constants(SimpleNamespace):
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"tf.estimator.{name}: TensorFlow has removed its estimators in version 2.16; they are "
            "a package of their own: pip install 'hvdlite[estimator]'"
        )


def _patch_optimizers(tf: ModuleType) -> None:
    """Optimizers of TensorFlow 1 take Keras 3's variables: those of TensorFlow inside them."""
    kind = tf.compat.v1.train.Optimizer

    def unwrapped(variables: Any) -> Any:
        return [each.value if hasattr(each, "path") else each for each in variables]

    original, compute = kind.apply_gradients, kind.compute_gradients

    @functools.wraps(original)
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        variables = unwrapped(variable for _, variable in pairs)
        pairs = [(pair[0], variable) for pair, variable in zip(pairs, variables, strict=True)]
        return original(self, pairs, *args, **kwargs)

    @functools.wraps(compute)
    def compute_gradients(self: Any, loss: Any, var_list: Any = None, *args: Any, **kw: Any) -> Any:
        var_list = unwrapped(var_list) if isinstance(var_list, list | tuple) else var_list
        return compute(self, loss, var_list, *args, **kw)

    kind.apply_gradients, kind.compute_gradients = apply_gradients, compute_gradients


def _patch_data_sets(tf: ModuleType) -> None:
    """Data sets have the iterators of TensorFlow 1, which yield tensors of a graph."""
    for name in ("make_initializable_iterator", "make_one_shot_iterator"):

        def method(self: Any, *args: Any, _name: str = name, **kwargs: Any) -> Any:
            used(f"dataset.{_name}()")
            return getattr(tf.compat.v1.data, _name)(self, *args, **kwargs)

        setattr(tf.data.Dataset, name, functools.wraps(getattr(tf.compat.v1.data, name))(method))


def _tensorflow(tf: ModuleType) -> None:
    missing(tf, functools.partial(_look_up, tf, "", tf))
    for part in vars(tf.compat.v1):
        module = vars(tf).get(part)
        if type(module) is ModuleType and not part.startswith("_"):
            missing(module, functools.partial(_look_up, tf, part, module))
    _patch_lazy_modules(tf)
    _patch_optimizers(tf)
    _patch_data_sets(tf)


def _patch_lazy_modules(tf: ModuleType) -> None:
    """tf.losses and tf.metrics, which find their names by themselves until Keras's modules of
    these names, imported with the first one, take their places."""
    kind: Any = type(vars(tf)["losses"])
    if "__getattr__" not in vars(kind):
        return
    original: Callable[[Any, str], Any] = kind.__getattr__
    parts = {id(vars(tf)[part]): part for part in ("losses", "metrics", "initializers")}
    placed = set()

    def __getattr__(self: Any, name: str) -> Any:
        part = parts.get(id(self))
        try:
            return original(self, name)
        except AttributeError:
            if part is None:
                raise
            return _look_up(tf, part, self, name)
        finally:
            if part and part not in placed and (place := vars(tf)[part]) is not self:
                placed.add(part)
                missing(place, functools.partial(_look_up, tf, part, place))

    kind.__getattr__ = __getattr__


PATCHES = {"tensorflow": _tensorflow}
