"""`%%horovodrun` and `!horovodrun` in a real kernel: output, errors, limits, interrupts."""

import pytest
from labs.notebook import Notebook, wait_until

# Without a framework, whose import takes longer than all the rest.
HELLO = "import hvdlite as hvd\nhvd.init()\nprint('rank', hvd.rank(), 'of', hvd.size())\n"


@pytest.fixture(scope="module")
def notebook():
    notebook = Notebook()
    yield notebook
    notebook.close()


def nothing_left(notebook: Notebook) -> bool:
    return wait_until(lambda: not notebook.children())


def test_a_cell_runs_as_a_program_on_two_ranks(notebook):
    told = notebook.run(f"%%horovodrun -np 2 -- --epochs 3\nimport sys\n{HELLO}print(sys.argv[1:])")
    assert "rank 0 of 2" in told and "rank 1 of 2" in told and "['--epochs', '3']" in told
    assert nothing_left(notebook)


def test_the_command_is_found_in_an_environment_that_is_not_activated(notebook):
    assert "hvdlite v" in notebook.run("!horovodrun --check-build")


def test_output_comes_while_the_program_runs_and_the_button_ends_it(notebook):
    told = notebook.run(
        "%%horovodrun -np 2\nimport time\nprint('begun', flush=True)\ntime.sleep(600)",
        interrupt_at="begun",
    )
    assert "begun" in told and "KeyboardInterrupt" in told
    assert nothing_left(notebook)
    assert "2" in notebook.run("1 + 1")


def test_a_deadlocked_cell_ends_at_its_limit(notebook):
    told = notebook.run(
        f"%%horovodrun -np 2 --limit 15\n{HELLO}"
        "from mpi4py import MPI\nMPI.COMM_WORLD.recv(source=1 - hvd.rank())"
    )
    assert "ran for 15 s and was ended" in told
    assert nothing_left(notebook)


def test_an_error_and_endless_output_end_the_cell(notebook):
    told = notebook.run("%%horovodrun -np 2\nraise ValueError('a mistake in the cell')")
    assert "a mistake in the cell" in told and "ended with exit code 1" in told
    told = notebook.run("%%horovodrun -np 1\nwhile True:\n    print('x' * 1000)")
    assert "more than a cell can show" in told
    assert nothing_left(notebook)


@pytest.mark.parametrize(
    ("line", "told"), [("", "-np 2"), ("-np 2 --limit soon", "seconds"), ("-np x", "-np")]
)
def test_a_line_that_makes_no_sense_is_refused(notebook, line, told):
    assert told in notebook.run(f"%%horovodrun {line}\nprint('never run')")
