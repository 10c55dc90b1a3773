"""An autograder's view: a stuck cell ends at its time limit, and what follows fails, not passes."""

from concurrent.futures import ThreadPoolExecutor

import nbformat
from nbclient import NotebookClient

STUCK = """
import hvdlite

def student():
    import torch
    import hvdlite.torch as hvd
    hvd.init()
    if hvd.rank() == 0:
        return hvd.allreduce(torch.ones(1)).item()  # rank 1 never comes
    while True:
        pass

result = hvdlite.run(student, np=2)
"""
TEST = "assert result == [1.0, 1.0]"
FAILING_RANK = """
import subprocess, sys
program = "import os, sys; sys.exit(3 if os.environ['OMPI_COMM_WORLD_RANK'] == '1' else 0)"
command = [sys.executable, "-m", "hvdrun", "-np", "2", sys.executable, "-c", program]
print("code", subprocess.run(command, capture_output=True).returncode)
"""
RIGHT = "print('right', hvdlite.run(lambda: 7, np=2))"


def _grade(_number: int) -> list[str]:
    cells = [nbformat.v4.new_code_cell(code) for code in (STUCK, TEST, FAILING_RANK, RIGHT)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = NotebookClient(
        notebook,
        timeout_func=lambda cell: 20 if cell.source == STUCK else 200,
        interrupt_on_timeout=True,
        allow_errors=True,
    )
    client.execute()
    said = []
    for cell in notebook.cells:
        outputs = [o.get("ename") or o.get("text", "") for o in cell.outputs]
        said.append(" ".join(outputs))
    return said


def test_two_notebooks_graded_side_by_side(ranks_left):
    with ThreadPoolExecutor(2) as pool:
        graded = list(pool.map(_grade, range(2)))
    for stuck, test, failing, right in graded:
        assert "KeyboardInterrupt" in stuck
        assert "NameError" in test  # there is no result, so the test can't pass
        assert "code 3" in failing
        assert "right [7, 7]" in right
    assert ranks_left() == []
