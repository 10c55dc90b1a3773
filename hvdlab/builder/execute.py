"""Run a solved notebook, and keep only what may be committed."""

from __future__ import annotations

import atexit
import os
import re
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import IO

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from .source import BuildError, Lab

CELL_LIMIT = 300  # seconds for one cell: it ends a hang
# TensorFlow looks for GPUs and tells of it, with the time of day; labs 05 and 07 speak of that.
_NOISE = r"^(\[.*?\](<stderr>:)? ?)?([IWE]0000 |WARNING: All log messages before absl).*\n"


def execute(
    notebook: NotebookNode,
    folder: Path,
    extra_path: Path | None = None,
    strict: bool = False,
    log: Path | None = None,
) -> NotebookNode:
    """Run all cells in a kernel of this Python that works in `folder`; returns the notebook.

    With `strict` an exercise that its check doesn't find done counts as a cell that failed.
    What its processes write elsewhere than into the notebook goes to `log`, or to the terminal.

    Raises:
        BuildError: a cell failed, took too long, or the kernel died.
    """
    paths = [str(extra_path)] if extra_path else []
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths + [os.environ.get("PYTHONPATH", "")]).rstrip(":"),
        "HVDLAB_LEDGER": str(folder / "predictions.json"),
        # Two notebooks at a time must not share a cluster. A socket's path has to be short.
        "HVDLITE_SLURM_DIR": f"{tempfile.gettempdir()}/hvdlab-{os.getpid()}-{id(notebook)}",
    }
    if strict:
        env["NBGRADER_EXECUTION"] = "autograde"  # checks raise errors, as for the autograder
    try:
        with open(log, "wb") if log else nullcontext() as file:
            _execute(notebook, folder, env, file)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise BuildError(f"a cell failed or did not end:\n{error}") from None
    return notebook


def _execute(
    notebook: NotebookNode, folder: Path, env: dict[str, str], log: IO[bytes] | None
) -> None:
    """Run it, with a second try where the kernel has not come up.

    Jupyter gives a kernel ports that are free, and another process may take one before it does.
    """

    def execute() -> None:
        client = NotebookClient(
            notebook,
            timeout=CELL_LIMIT,
            kernel_name="python3",
            record_timing=True,  # `tidy` takes it out
            coalesce_streams=True,
            extra_arguments=["--IPKernelApp.log_level=40"],
            resources={"metadata": {"path": str(folder)}},
        )
        try:
            client.execute(env=env, stdout=log, stderr=log)
        finally:  # or a client whose kernel has not come up complains when Python ends
            atexit.unregister(client._cleanup_kernel)

    try:
        execute()
    except RuntimeError as error:
        if type(error) is not RuntimeError:  # that of a kernel that had come up
            raise
        execute()


def tidy(notebook: NotebookNode, lab: Lab) -> NotebookNode:
    """Take this machine's paths, process ids of kernels and time stamps out of the outputs."""
    root = lab.path.resolve().parents[2]
    known = [(str(root), "hvdlite"), (sys.prefix, "venv"), (str(Path.home()), "~")]
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            for shown in (output, output.get("data", {})):
                for kind, value in shown.items():
                    if isinstance(value, str) and kind.startswith("text"):
                        shown[kind] = _without(value, known)
        if cell.cell_type == "code":  # what was noise alone would leave an empty line, or a red one
            cell.outputs = [o for o in cell.outputs if o.get("text", "something").strip()]
    return notebook


def _without(text: str, known: list[tuple[str, str]]) -> str:
    for path, name in known:
        text = text.replace(path, name) if len(path) > 1 else text
    text = re.sub(_NOISE, "", text, flags=re.MULTILINE)
    text = re.sub(r"/tmp/ipykernel_\d+/\d+\.py", "cell", text)
    return re.sub(r"/tmp/[\w./-]+", "/tmp/...", text)
