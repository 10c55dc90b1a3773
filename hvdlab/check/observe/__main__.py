"""Run the student's script under observation: `python -m hvdlab.check.observe plan.json`."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.abc
import importlib.util
import json
import os
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvdlite.runtime.launchers import rank_of

from ..run import ASKED
from . import data_side, guard, options_side, runtime
from .recorder import Recorder, Samples


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function as soon as a module of some name has been imported."""

    def __init__(self, actions: dict[str, Callable[[], None]]):
        self._actions = actions
        self._asked: set[str] = set()

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in self._actions or name in self._asked:
            return None
        self._asked.add(name)
        spec = importlib.util.find_spec(name)
        self._asked.discard(name)
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                # Only now: who asks for a spec may want to know no more than whether it is there.
                action = self._actions.pop(name, None)
                if action:
                    action()

            spec.loader.exec_module = exec_module
        return spec


def _watch_imports(
    record: Recorder,
    samples: Samples,
    slices: data_side.Slice,
    steps: int | None,
    parsers: dict[str, Callable[[], None]],
) -> None:
    tensorflow_is_whole: list[bool] = []
    keras_waits: list[bool] = []

    def torch() -> None:
        from . import torch_side

        torch_side.watch(record, samples)
        data_side.serve_torchvision(slices, Path(record.folder))

    def tensorflow() -> None:
        from . import session_side, tensorflow_side

        tensorflow_side.watch(record, samples)
        session_side.watch(record, samples)
        tensorflow_is_whole.append(True)
        if keras_waits:
            keras()

    def keras() -> None:
        if "tensorflow" in sys.modules and not tensorflow_is_whole:
            keras_waits.append(True)  # TensorFlow imports Keras; the rest comes when that is done
            return
        from . import keras_side

        keras_side.watch(record, samples, steps)
        data_side.serve_keras(slices, "keras", "keras._tf_keras.keras")

    def tf_keras() -> None:
        from . import keras_side

        keras_side.watch_tf_keras(record, samples, steps)
        data_side.serve_keras(slices, "tf_keras")

    actions = {"torch": torch, "tensorflow": tensorflow, "keras": keras, "tf_keras": tf_keras}
    actions |= parsers
    for name in list(actions):
        if name in sys.modules:  # a fork of a process that has it: see hvdlab.warm
            actions.pop(name)()
    sys.meta_path.insert(0, _AfterImport(actions))


def _run(record: Recorder, phase: int, script: Path, arguments: list[str]) -> bool:
    """Run the script once; whether it came to its end."""
    record.phase = phase
    record("phase", number=phase, arguments=arguments)
    sys.argv = [str(script), *arguments]
    error: BaseException | None = None
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        error = end if end.code not in (None, 0) else None
    except BaseException as problem:
        error = problem
    facts: dict[str, Any] = {"error": None}
    if error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        own = [n for n, f in enumerate(frames) if f.filename.startswith(str(script.parent))]
        place = ""
        if own:
            place = f"{Path(frames[own[-1]].filename).name}, line {frames[own[-1]].lineno}"
        called = [frame.name for frame in frames[own[-1] + 1 :]] if own else []
        text = f"{type(error).__name__}: {error}"
        facts = {"error": text[:1500], "where": place, "called": called[:3]}
        traceback.print_exception(error)
    if visible := record.gpus_are_seen():
        chosen = [int(each) for each in visible.split(",") if each.strip().isdigit()]
        record("gpu", how="environment", chosen=chosen, where="CUDA_VISIBLE_DEVICES")
    record("end", phase=phase, **facts)
    return error is None


def _meet(folder: Path, rank: int, size: int, phase: int, well: bool) -> bool:
    """Wait until every rank has come to the end of this phase; whether all did so well.

    A rank that still waits in a collective for one that is here gets an error by `shutdown`.
    """
    from hvdlite import basics

    with contextlib.suppress(Exception):
        basics.shutdown()
    (folder / f"phase-{phase}-rank-{rank}").write_text("well" if well else "badly")
    marks = [folder / f"phase-{phase}-rank-{each}" for each in range(size)]
    while not all(mark.exists() and mark.read_text() for mark in marks):
        time.sleep(0.02)
    return all(mark.read_text() == "well" for mark in marks)


def _forget(variables: dict[str, str], folder: Path) -> None:
    """What a new process would not have: other variables, and the modules of the folder."""
    for name, module in list(sys.modules.items()):
        facts = getattr(module, "__dict__", {})
        # A folder without __init__.py is a module without a file.
        places = [facts.get("__file__") or "", *(facts.get("__path__") or ())]
        if any(str(place).startswith(f"{folder}/") for place in places):
            del sys.modules[name]
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].compat.v1.reset_default_graph()
    if "absl.flags" in sys.modules:
        sys.modules["absl.flags"].FLAGS.unparse_flags()
    if "keras" in sys.modules:
        with contextlib.suppress(Exception):
            sys.modules["keras"].backend.clear_session()
    gc.collect()


def main() -> int:
    """Run all phases of the plan; the exit code."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    rank = rank_of(os.environ)
    folder = Path(plan["folder"])
    home = folder / f"rank-{rank}"
    script = home / "work" / plan["script"]
    record = Recorder(folder / f"record-{rank}.jsonl", rank, script, plan["gpus"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(home / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
    os.chdir(script.parent)
    sys.path[0] = str(script.parent)
    samples = Samples()
    runtime.watch(record, plan["apart"])
    slices = data_side.Slice(record, samples, str(folder / "data"))
    runtime.watch_data(slices)
    runtime.watch_cores(record)
    runtime.watch_stderr(record)
    options = options_side.Options(record, plan["variables"], str(home))
    options_side.watch_environment(record, options)
    options_side.watch_argparse(options)
    parsers = {
        "click": functools.partial(options_side.watch_click, options),
        "absl.flags": functools.partial(options_side.watch_absl, options),
    }
    _watch_imports(record, samples, slices, plan.get("steps"), parsers)
    os.environ.pop("OMP_NUM_THREADS", None)
    guard.watch(record, folder)
    threading.Thread(target=record.answer, args=[folder / ASKED], daemon=True).start()
    variables = dict(os.environ)
    for phase, arguments in enumerate(plan["phases"], 1):
        given = [each.replace("{home}", str(home)) for each in arguments]
        well = _run(record, phase, script, given)
        if not _meet(folder, rank, plan["np"], phase, well):
            return 1
        _forget(variables, script.parent)
    record("finished")
    return 0


if __name__ == "__main__":
    sys.exit(main())
