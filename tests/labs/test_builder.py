"""The builder: what it makes of a source, and what it refuses, with file and line."""

import re
from pathlib import Path

import nbformat
import pytest

from hvdlab.builder import BuildError, build, find, instructor, paths, read, student, write

LABS = Path(__file__).resolve().parents[2] / "labs"

OPENING = """\
# %% [markdown]
# # Lab 07: A test
#
# You will be able to
#
# - test.
#
# **Time**: 30 minutes.
#
# **Before** you begin: nothing.
#
# **Without a GPU**: nothing changes.
"""
CARD = """
# %% [markdown] exercise="mean"
# ## Exercise: the mean
# goal: Write a mean and see it checked.
# minutes: 10
# difficulty: 2
# importance: core
#
# Do it.
"""
SOLUTION = """
# %% solution="mean"
def mean(numbers):
    first = None
    ### BEGIN SOLUTION
    return sum(numbers) / len(numbers)
    ### END SOLUTION
"""
CHECK = """
# %% check="mean" points=2
assert mean([1, 3]) == 2
### BEGIN HIDDEN TESTS
assert mean([7]) == 7
### END HIDDEN TESTS
"""
END = """
# %%
# !echo "from the shell"

# %%
# %%px --limit 3
print("on the ranks")

# %% [markdown]
# ## Summary
"""
GOOD = OPENING + CARD + SOLUTION + CHECK + END


def source(folder: Path, text: str) -> Path:
    path = folder / "labs" / "07_test" / "lab.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refused(tmp_path: Path, text: str) -> tuple[int, str]:
    """The line and the message of the refusal."""
    path = source(tmp_path, text)
    with pytest.raises(BuildError) as caught:
        read(path)
    found = re.fullmatch(rf"{re.escape(str(path))}:(\d+): (.*)", str(caught.value), re.DOTALL)
    assert found, caught.value
    return int(found[1]), found[2]


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def test_students_get_the_exercise_emptied_and_no_hidden_tests(tmp_path):
    lab = read(source(tmp_path, GOOD))
    opening, card, solution, check, shell, px, summary = student(lab).cells
    assert solution.source == "def mean(numbers):\n    first = None\n    # YOUR CODE HERE\n    pass"
    assert check.source == "assert mean([1, 3]) == 2"
    assert shell.source == '!echo "from the shell"'
    assert px.source.startswith("%%px --limit 3\nprint")
    assert "10 minutes" in card.source and "●●○" in card.source and "Do it." in card.source
    assert "minutes:" not in card.source
    grader = check.metadata.nbgrader
    assert (grader.grade, grader.points, grader.locked, grader.solution) == (True, 2, True, False)
    assert solution.metadata.nbgrader.solution and not solution.metadata.nbgrader.grade


def test_instructors_get_everything_with_its_marks(tmp_path):
    cells = instructor(read(source(tmp_path, GOOD))).cells
    assert "### BEGIN SOLUTION\n    return sum" in cells[2].source
    assert "### BEGIN HIDDEN TESTS\nassert mean([7])" in cells[3].source


def test_the_same_source_makes_the_same_bytes(tmp_path):
    first, second = (read(source(tmp_path / name, GOOD)) for name in ("one", "two"))
    assert write(student(first)) == write(student(second))
    assert write(instructor(first)) == write(instructor(second))
    ids = [cell.id for cell in student(first).cells]
    assert ids == [cell.id for cell in instructor(first).cells] and len(set(ids)) == len(ids)
    nbformat.validate(student(first))


MARKS = {
    "END without BEGIN": ("    ### BEGIN SOLUTION\n", "", "### END SOLUTION"),
    "without END": ("    ### END SOLUTION\n", "", "### BEGIN SOLUTION"),
    "not a mark": ("### BEGIN SOLUTION", "## begin solution", "## begin solution"),
    "no place in a check": ("### BEGIN HIDDEN TESTS", "### BEGIN SOLUTION", None),
}


@pytest.mark.parametrize("told", MARKS)
def test_marks_that_do_not_match_stop_it_with_their_line(tmp_path, told):
    old, new, where = MARKS[told]
    text = GOOD.replace(old, new, 1)
    line, message = refused(tmp_path, text)
    assert told in message
    if where:
        assert line == line_of(text, where)
    else:
        assert line == line_of(text, "assert mean([1, 3])") + 1


@pytest.mark.parametrize("field", ["goal", "minutes", "difficulty", "importance"])
def test_a_card_lacks_nothing(tmp_path, field):
    text = re.sub(rf"# {field}: .*\n", "", GOOD)
    line, message = refused(tmp_path, text)
    assert field in message and line == line_of(text, "# ## Exercise")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (OPENING + SOLUTION + CHECK + END, "without its card"),
        (OPENING + CARD + SOLUTION + END, "has no check"),
        (OPENING + CARD + CHECK + SOLUTION + END, "before its solution"),
        (GOOD.replace("points=2", ""), "has points"),
        (GOOD.replace("difficulty: 2", "difficulty: 5"), "difficulty"),
        (GOOD.replace("**Without a GPU**", "Without"), "Without a GPU"),
        (GOOD.replace("## Summary", "## End"), "Summary"),
        (GOOD.replace("# Lab 07", "# Lab 08"), "Lab 07"),
        (GOOD.replace('check="mean"', 'chekc="mean"'), "unknown"),
    ],
)
def test_a_lab_that_lacks_a_part_is_refused(tmp_path, text, told):
    _, message = refused(tmp_path, text)
    assert told in message


def test_a_solution_that_fails_stops_the_builder(tmp_path):
    source(tmp_path, GOOD.replace("len(numbers)", "0").replace("# %%px --limit 3\n", ""))
    with pytest.raises(BuildError, match="ZeroDivisionError"):
        build(tmp_path / "labs", tell=lambda line: None)
    assert not (tmp_path / "labs" / "07_test" / "solution").exists()


def test_a_solution_that_its_own_check_refuses_stops_the_builder(tmp_path):
    check = (
        "from hvdlab.exercise import Check\n"
        "with Check('the mean') as check:\n    check.that(mean([1, 3]) == 7, 'it is 7')"
    )
    text = GOOD.replace("assert mean([1, 3]) == 2", check).replace("# %%px --limit 3\n", "")
    source(tmp_path, text)
    with pytest.raises(BuildError, match="the mean: not right yet"):
        build(tmp_path / "labs", tell=lambda line: None)


def test_a_built_notebook_is_executed_without_times_and_paths(tmp_path):
    text = GOOD.replace(
        "# %%px --limit 3\n", "import os; print(os.getcwd(), __import__('sys').prefix)\n"
    )
    text = text.replace("print(os.getcwd()", "print(os.path.abspath('x')")
    path = source(tmp_path, text)
    build(tmp_path / "labs", ["7"], tell=lambda line: None)
    done = paths(path)[1].read_text()
    assert "from the shell" in done
    assert str(tmp_path) not in done and "iopub" not in done
    import sys

    assert sys.prefix not in done


@pytest.mark.parametrize("path", find(LABS), ids=lambda path: path.parent.name)
def test_committed_notebooks_match_their_source(path):
    for_student, for_instructor = paths(path)
    lab = read(path)
    assert for_student.read_text() == write(student(lab)), "run `hvdlab build --only-students`"
    committed = nbformat.read(for_instructor, as_version=4)
    fresh = instructor(lab)
    assert [(c.id, c.source) for c in committed.cells] == [(c.id, c.source) for c in fresh.cells], (
        f"run `hvdlab build {path.parent.name[:2]}`"
    )
    outputs = [output for cell in committed.cells for output in cell.get("outputs", [])]
    assert outputs, "the instructor's notebook has no outputs"
    for cell in committed.cells:
        if "raises-exception" not in cell.metadata.get("tags", []):
            assert not [o for o in cell.get("outputs", []) if o.output_type == "error"], cell.source
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                assert output.metadata["image/png"]["alt"], (
                    f"a figure without alt text: {cell.source}"
                )


@pytest.mark.parametrize("path", find(LABS), ids=lambda path: path.parent.name)
def test_every_exercise_of_a_solution_is_done(path):
    committed = nbformat.read(paths(path)[1], as_version=4)
    for cell in committed.cells:
        if not cell.metadata.get("nbgrader", {}).get("grade"):
            continue
        told = "".join(o.get("data", {}).get("text/plain", "") for o in cell.outputs)
        assert ": done\n" in told and "✘" not in told, (cell.id, told)


@pytest.mark.parametrize("source", find(LABS), ids=lambda source: source.parent.name)
def test_an_unwritten_exercise_shows_nothing(source):
    """A cell that ends with an expression shows its value, and `...` shows "Ellipsis"."""
    for cell in student(read(source)).cells:
        assert cell.cell_type != "code" or cell.source.splitlines()[-1:] != ["..."], cell.source
