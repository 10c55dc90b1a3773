"""`tf.estimator` from the package tensorflow-estimator, which TensorFlow has dropped since 2.16.

The last release, 2.15, is all there; it lacks a few things of TensorFlow's that are gone, and here
they are: the name under which it exports its own, and the coordinator of tf.distribute, which no
program for Horovod uses. Its part for TPUs is left out.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

from hvdnames import unsaid

_PLACES = ("_api.v1.estimator", "python.estimator.api._v1.estimator")


def load() -> ModuleType | None:
    """tensorflow_estimator's names for TensorFlow 1; None where the package is not installed."""
    if importlib.util.find_spec("tensorflow_estimator") is None:
        return None
    export = importlib.import_module("tensorflow.python.util.tf_export")
    if not hasattr(export, "ESTIMATOR_API_NAME"):
        export.ESTIMATOR_API_NAME = name = "estimator"
        for table in (export.API_ATTRS, export.API_ATTRS_V1):
            table[name] = export._Attributes("_estimator_api_names", "_estimator_api_constants")
        _stand_in("tensorflow.python.distribute.estimator_training", **_NO_COORDINATOR)
        for place in _PLACES:
            _stand_in(f"tensorflow_estimator.{place}.tpu")
    with unsaid():
        return importlib.import_module(f"tensorflow_estimator.{_PLACES[1]}")


def _stand_in(name: str, **names: Any) -> None:
    module = ModuleType(name)
    vars(module).update(names)
    sys.modules[name] = module
    if name.startswith("tensorflow."):  # `from package import module` asks the package
        owner, _, attribute = name.rpartition(".")
        setattr(importlib.import_module(owner), attribute, module)


def _init_run_config(config: Any, _: Any) -> None:
    """Refuse a RunConfig with a strategy of tf.distribute; ranks are what there is."""
    raise ValueError(
        "RunConfig(train_distribute=, eval_distribute=, experimental_distribute=): TensorFlow has "
        "removed the strategies for estimators; the ranks of this job share the work instead"
    )


_NO_COORDINATOR = {
    "init_run_config": _init_run_config,
    "should_run_distribute_coordinator": lambda config: False,
}
