"""Run a solved notebook, and keep only what may be committed."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from .source import BuildError, Lab

CELL_LIMIT = 300  # seconds for one cell: it ends a hang


def execute(
    notebook: NotebookNode, folder: Path, extra_path: Path | None = None, strict: bool = False
) -> NotebookNode:
    """Run all cells in a kernel of this Python that works in `folder`; returns the notebook.

    With `strict` an exercise that its check doesn't find done counts as a cell that failed.

    Raises:
        BuildError: a cell failed, took too long, or the kernel died.
    """
    paths = [str(extra_path)] if extra_path else []
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths + [os.environ.get("PYTHONPATH", "")]).rstrip(":"),
        "HVDLAB_LEDGER": str(folder / "predictions.json"),
    }
    if strict:
        env["NBGRADER_EXECUTION"] = "autograde"  # checks raise errors, as for the autograder
    client = NotebookClient(
        notebook,
        timeout=CELL_LIMIT,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--IPKernelApp.log_level=40"],
        resources={"metadata": {"path": str(folder)}},
    )
    try:
        client.execute(env=env)
    except CellExecutionError as error:
        raise BuildError(f"a cell failed:\n{error}") from None
    except (CellTimeoutError, DeadKernelError) as error:
        raise BuildError(f"a cell did not end: {error}") from None
    return notebook


def tidy(notebook: NotebookNode, lab: Lab) -> NotebookNode:
    """Take this machine's paths, process ids of kernels and time stamps out of the outputs."""
    root = lab.path.resolve().parents[2]
    known = [(str(root), "hvdlite"), (sys.prefix, "venv"), (str(Path.home()), "~")]
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            if "text" in output:
                output["text"] = _without(output["text"], known)
            for kind, value in output.get("data", {}).items():
                if isinstance(value, str) and kind.startswith("text/"):
                    output["data"][kind] = _without(value, known)
    return notebook


def _without(text: str, known: list[tuple[str, str]]) -> str:
    for path, name in known:
        if len(path) > 1:
            text = text.replace(path, name)
    text = re.sub(r"/tmp/ipykernel_\d+/\d+\.py", "cell", text)
    return re.sub(r"/tmp/[\w./-]+", "/tmp/...", text)
