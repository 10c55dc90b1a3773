"""How nbgrader runs a submission: within limits, and nothing of it is left afterwards."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import platformdirs
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader import preprocessors
from traitlets import Integer, Unicode

from .. import watchdog
from ..check.run import FILE_MB, KEPT, MEMORY_MB, OUTPUT_MB

_LONGEST = 95  # of a path, beside which sockets lie: Linux takes 107 characters
MARK = "HVDLAB_GRADING"  # in the environment of all processes of a submission: its folder
# Where the data is, and what lets the checks raise errors, from which nbgrader takes its points.
_KEPT = ("HVDLITE_DATA_DIR", "HVDLITE_DATA_SOURCES", "HVDLITE_DATA_MIRROR", "NBGRADER_EXECUTION")


class ConfinedKernel(AsyncKernelManager):
    """A kernel that changes files in `folder` only, with limits on memory and on files."""

    folder = Unicode()

    def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:
        """The kernel's command line, behind `hvdlab.check.confine`."""
        folders = f"{self.folder}:/dev:/proc"  # a lab's ranks share memory by them
        confine = [sys.executable, "-m", "hvdlab.check.confine", folders]
        return [*confine, str(MEMORY_MB), str(FILE_MB), *super().format_kernel_cmd(extra_arguments)]


class Execute(preprocessors.Execute):
    """Runs a submission in a copy of its folder; `c.Execute` in nbgrader_config.py sets it.

    A kernel that ends, or can't be interrupted, costs the exercises that it had not come to.
    """

    timeout = Integer(300, help="Seconds for one cell.").tag(config=True)
    limit = Integer(1800, help="Seconds for a whole notebook.").tag(config=True)
    # An interrupted cell of several ranks says who waits for whom before it ends.
    iopub_timeout = Integer(30, help="Seconds for a cell to end when interrupted.").tag(config=True)

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, kernel_manager_class=ConfinedKernel, **more)

    def preprocess(
        self, nb: NotebookNode, resources: Any = None, km: Any = None
    ) -> tuple[NotebookNode, Any]:
        """Run all cells; the outputs are in the notebook, and every process has ended."""
        deadline = time.monotonic() + self.limit
        self.timeout_func = lambda cell: max(1, min(self.timeout, int(deadline - time.monotonic())))
        self._lost = ""
        place = resources["metadata"]["path"]
        with tempfile.TemporaryDirectory(
            prefix="hvdlab-grade-", ignore_cleanup_errors=True
        ) as made:
            self._folder = Path(made).resolve()
            for name in ("home", "tmp"):
                (self._folder / name).mkdir()
            work = self._folder / "lab"
            shutil.copytree(place, work, symlinks=True, copy_function=shutil.copyfile)
            resources["metadata"]["path"] = str(work)
            try:
                return super().preprocess(nb, resources, km)
            finally:
                resources["metadata"]["path"] = place
                watchdog.end(str(self._folder), MARK)

    def create_kernel_manager(self) -> ConfinedKernel:
        """A manager for the kernel of this submission."""
        manager = super().create_kernel_manager()
        manager.folder = str(self._folder)
        # Not over TCP: of kernels that start at the same time two may choose the same ports, and
        # who asks the wrong one waits for ever.
        file = str(self._folder / "kernel.json")
        if len(file) < _LONGEST:
            manager.transport, manager.connection_file = "ipc", file
        return manager

    def start_new_kernel(self, **more: Any) -> None:
        """Start the kernel without the environment of whoever grades."""
        super().start_new_kernel(env=self._environment(), **more)

    def preprocess_cell(
        self, cell: NotebookNode, resources: Any, index: int
    ) -> tuple[NotebookNode, Any]:
        """Run one cell; one that can't be run any more has an error as its output."""
        self._printed = 0
        if cell.cell_type != "code":
            return cell, resources
        if not self._lost:
            try:
                super().preprocess_cell(cell, resources, index)
            except DeadKernelError:
                self._lost = "The notebook's process ended in an earlier cell."
                cell.outputs.append(_error("the process of this notebook ended in this cell"))
            except CellTimeoutError:
                self._lost = "An earlier cell went past its time and could not be interrupted."
                cell.outputs.append(_error("this cell went past its time, whatever was done"))
        else:
            cell.outputs = [_error(self._lost)]
        for output in cell.outputs:
            if output.output_type == "stream":
                output.name = "stdout"  # nbgrader gives no points where a library warns on stderr
        return cell, resources

    def process_message(self, msg: dict, cell: NotebookNode, cell_index: int) -> Any:
        """Take an output into the notebook, as long as the cell has not printed too much."""
        if msg["msg_type"] in ("stream", "display_data", "execute_result"):
            self._printed += len(str(msg["content"]))
            if self._printed > OUTPUT_MB << 20:
                return None
        return super().process_message(msg, cell, cell_index)

    def _environment(self) -> dict[str, str]:
        kept = (*KEPT, *_KEPT)
        return {
            "HVDLITE_DATA_DIR": str(platformdirs.user_cache_path("hvdlite") / "data"),
            **{name: os.environ[name] for name in kept if name in os.environ},
            MARK: str(self._folder),
            "HOME": str(self._folder / "home"),
            "TMPDIR": str(self._folder / "tmp"),
            "HVDLAB_LEDGER": str(self._folder / "predictions.json"),
            "HVDLITE_SLURM_DIR": str(self._folder / "slurm"),
        }


def _error(text: str) -> NotebookNode:
    return new_output("error", ename="NotRun", evalue=text, traceback=[f"NotRun: {text}"])
