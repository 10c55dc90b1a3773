"""`%%horovodrun` and `!horovodrun` in a real kernel: output, errors, limits, interrupts."""

import shutil

import pytest
from labs.notebook import ROOT, Notebook, wait_until

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
    assert "begun" in told and "KeyboardInterrupt: the program was ended on all ranks" in told
    assert "Traceback" not in told
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
    assert "a mistake in the cell" in told and "CellFailed: the program ended with exit" in told
    assert "hvdlab/magic.py" not in told
    told = notebook.run("%%horovodrun -np 1\nwhile True:\n    print('x' * 1000)")
    assert "printed more than 16 MB" in told and len(told) < 100_000
    assert nothing_left(notebook)


@pytest.mark.parametrize(
    ("line", "told"), [("", "-np 2"), ("-np 2 --limit soon", "seconds"), ("-np x", "-np")]
)
def test_a_line_that_makes_no_sense_is_refused(notebook, line, told):
    assert told in notebook.run(f"%%horovodrun {line}\nprint('never run')")


def test_of_much_output_beginning_and_end_are_shown(notebook):
    told = notebook.run(
        "%%horovodrun -np 1\nfor number in range(30_000):\n    print('line', number)"
    )
    assert "line 0\n" in told and "line 29999" in told and len(told) < 100_000
    assert "characters are left out here" in told


def test_a_restarted_kernel_knows_the_magics(tmp_path):
    """By the configuration that is installed with hvdlab; here it is the user's."""
    profile = tmp_path / "profile_default"
    profile.mkdir()
    shutil.copy(ROOT / "tools/jupyter/ipython_kernel_config.py", profile)
    notebook = Notebook(IPYTHONDIR=str(tmp_path))
    try:
        notebook.restart()
        assert "start them with engines.start(2)" in notebook.run("%%px\nprint(1)")
        assert "conversion.begin" in notebook.run("%%step 1\nprint(1)")
        assert "hello" in notebook.run("%%horovodrun -np 1\nprint('hello')")
    finally:
        notebook.close()
