"""A class in nbgrader's own commands: handed out, submitted, collected, marked, told."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import nbformat
import psutil
import pytest
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderApp
from nbgrader.nbgraderformat import MetadataValidator
from nbgrader.preprocessors import ClearHiddenTests, ClearSolutions
from traitlets.config import Config
from typer.testing import CliRunner

from hvdlab.builder import find, instructor, paths, read
from hvdlab.check.confine import landlock_version
from hvdlab.cli import app
from hvdlab.grading import configure, make_course
from hvdlab.grading.execute import MARK, Execute
from hvdlab.grading.mark import mark

LABS = Path(__file__).resolve().parents[2] / "labs"
LAB = "01_why_data_parallelism"  # short, and of one process
POINTS = {"averaged-gradient": 2, "uneven": 2, "parallel-step": 3}  # of its first half
LIMIT = 30  # seconds for a cell, above what any of the lab needs

CURIOUS = """
import os
from hvdlab import engines
ranks = engines.start(2)
print("ranks", len(ranks.apply(os.getpid)))
print("files in", os.path.realpath(ranks.apply(os.getenv, "HVDLAB_ENGINES")[0]), flush=True)
print("secret", os.environ.get("GRADERS_SECRET"))
try:
    open({outside!r}, "w").write("mine")
except OSError as error:
    print("refused", error)
"""
# Ranks and a process of its own session, and a loop that the interrupt button doesn't end.
STUCK = """
import os, subprocess, time
from hvdlab import engines
ranks = engines.start(2)
print("files in", os.path.realpath(ranks.apply(os.getenv, "HVDLAB_ENGINES")[0]), flush=True)
subprocess.Popen(["sleep", "600"], start_new_session=True)
while True:
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        pass
"""


class Course:
    """The folders of a course and its students, and nbgrader's commands in them."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch):
        self.patch = patch
        self.teacher, self.exchange = folder / "course", folder / "exchange"
        self.temporary = folder / "t"
        for made in (self.exchange, self.temporary):
            made.mkdir()
        patch.setenv("TMPDIR", str(self.temporary))
        patch.setenv("JUPYTER_DATA_DIR", str(folder / "data"))
        patch.setenv("JUPYTER_CONFIG_DIR", str(folder / "config"))
        patch.setenv("PYTHONPATH", str(LABS.parent))
        patch.setenv("GRADERS_SECRET", "xyzzy")

    def nbgrader(self, *words: str, at: Path | None = None) -> None:
        """The command in a folder; in this process, since nbgrader takes seconds to import."""
        self.patch.chdir(at or self.teacher)
        try:
            NbGraderApp.launch_instance(argv=list(words))
        except SystemExit as end:
            assert not end.code, words
        finally:
            NbGraderApp.clear_instance()

    def submit(self, student: str, notebook) -> None:
        """As a student does it, in a folder with nothing but the lab and where the exchange is."""
        home = self.teacher.parent / student
        (home / LAB).mkdir(parents=True)
        nbformat.write(notebook, home / LAB / f"{LAB}.ipynb")
        (home / "nbgrader_config.py").write_text(
            "c = get_config()\nc.CourseDirectory.course_id = 'hvdlite'\n"
            f"c.Exchange.root = {str(self.exchange)!r}\n"
        )
        self.nbgrader("submit", LAB, f"--CourseDirectory.student_id={student}", at=home)

    def marks(self, student: str) -> dict[str, float]:
        with Gradebook(f"sqlite:///{self.teacher}/gradebook.db") as book:
            submission = book.find_submission(LAB, student)
            assert submission.max_score == sum(POINTS.values())
            (notebook,) = submission.notebooks
            marks = {
                grade.name.removeprefix("check-"): grade.auto_score for grade in notebook.grades
            }
            assert submission.score == sum(marks.values())
            assert not submission.needs_manual_grade
        return marks

    def marked(self, student: str):
        """A student's notebook as the autograder has run it."""
        return nbformat.read(self.teacher / "autograded" / student / LAB / f"{LAB}.ipynb", 4)

    def told(self, student: str) -> str:
        """All outputs of it."""
        outputs = [o for c in self.marked(student).cells for o in c.get("outputs", [])]
        return "\n".join(
            o.get("text", "") or o.get("evalue", "") or o.get("data", {}).get("text/plain", "")
            for o in outputs
        )

    def feedback(self, student: str) -> str:
        return (self.teacher / "feedback" / student / LAB / f"{LAB}.html").read_text()


def cell(notebook, name: str):
    return next(cell for cell in notebook.cells if cell.id == name)


def solve(notebook, *names: str):
    solved = instructor(read(LABS / LAB / "lab.py"))
    for name in names:
        cell(notebook, f"solution-{name}").source = cell(solved, f"solution-{name}").source
    return notebook


@pytest.fixture(scope="module")
def course():
    folder = Path(tempfile.mkdtemp(prefix="nb")).resolve()  # short: sockets lie in it
    # The course's configuration sets variables, in this process; they go with it.
    with pytest.MonkeyPatch.context() as patch, mock.patch.dict(os.environ):
        yield mark_a_class(Course(folder, patch))
    shutil.rmtree(folder)


def test_a_course_can_be_made_anywhere(tmp_path):
    command = [sys.executable, "-m", "hvdlab", "nbgrader", "course", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "course/source" / LAB / f"{LAB}.ipynb").is_file()


def mark_a_class(course: Course) -> Course:
    students = course.exchange / "class.csv"
    students.write_text("id,first_name,last_name\nada,Ada,Lee\nben,Ben,Ray\n")
    make_course(course.teacher, LABS, ["1"], students, course.exchange)
    with open(course.teacher / "nbgrader_config.py", "a") as config:
        config.write(f"c.Execute.timeout = {LIMIT}\nc.Execute.iopub_timeout = 6\n")
    source = course.teacher / "source" / LAB / f"{LAB}.ipynb"
    half = nbformat.read(source, 4)
    del half.cells[half.cells.index(cell(half, "check-parallel-step")) + 1 :]
    nbformat.write(half, source)
    course.nbgrader("generate_assignment", LAB)
    course.nbgrader("release_assignment", LAB)
    released = course.exchange / "hvdlite" / "outbound" / LAB / f"{LAB}.ipynb"

    def fresh():
        return nbformat.read(released, 4)

    ada = solve(fresh(), *POINTS)
    outside = str(course.teacher / "mine.txt")
    for more in (CURIOUS.format(outside=outside), "os._exit(0)", "print('too late')"):
        ada.cells.append(nbformat.v4.new_code_cell(more))
    course.submit("ada", ada)

    ben = solve(fresh(), "averaged-gradient")
    changed = cell(ben, "check-uneven")
    changed.source = "print('all fine')"
    changed.metadata.nbgrader.update(points=100, locked=False)
    ben.cells.remove(cell(ben, "check-parallel-step"))
    course.submit("ben", ben)

    cyd = solve(fresh(), *POINTS)
    place = cyd.cells.index(cell(cyd, "solution-uneven"))
    cyd.cells.insert(place, nbformat.v4.new_code_cell(STUCK))
    course.submit("cyd", cyd)

    course.nbgrader("collect", LAB)
    done = CliRunner().invoke(app, ["autograde", "1", "--course", str(course.teacher)])
    assert done.exit_code == 0 and "marked: 3 of 3" in done.stdout, done.output
    course.nbgrader("generate_feedback", LAB)
    return course


@pytest.mark.slow
def test_a_solved_lab_gets_all_points(course):
    assert course.marks("ada") == POINTS
    assert "four workers, one gradient: done" in course.told("ada")


@pytest.mark.slow
def test_a_half_solved_lab_gets_its_part_and_changed_tests_gain_nothing(course):
    assert course.marks("ben") == {**dict.fromkeys(POINTS, 0), "averaged-gradient": 2}
    graded = [c for c in course.marked("ben").cells if c.metadata.get("nbgrader", {}).get("grade")]
    for name in ("uneven", "parallel-step"):  # one was changed, the other one deleted
        original = cell(instructor(read(LABS / LAB / "lab.py")), f"check-{name}").source
        assert [c for c in graded if c.source.endswith(original)]
    assert "all fine" not in course.told("ben")


@pytest.mark.slow
def test_a_notebook_whose_process_ends_is_marked_up_to_there(course):
    told = course.told("ada")
    assert "the process of this notebook ended in this cell" in told
    assert "process ended in an earlier cell" in told and "too late" not in told


@pytest.mark.slow
def test_a_loop_that_nothing_ends_is_marked_up_to_there(course):
    assert course.marks("cyd") == {**dict.fromkeys(POINTS, 0), "averaged-gradient": 2}
    assert "this cell went past its time" in course.told("cyd")


@pytest.mark.slow
def test_a_submission_has_ranks_but_not_what_is_the_teachers(course):
    told = course.told("ada")
    assert "ranks 2" in told
    assert "secret None" in told
    if landlock_version():
        assert "refused" in told and not (course.teacher / "mine.txt").exists()


def left(course: Course) -> list[list[str]]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK, "").startswith(str(course.temporary)):
                found.append(process.cmdline())
        except (psutil.Error, OSError):
            continue
    return found


@pytest.mark.slow
def test_nothing_of_a_submission_is_left(course):
    assert left(course) == []
    assert list(course.temporary.iterdir()) == []
    for student in ("ada", "cyd"):  # their engines' files are in memory
        folder = re.search(r"files in (/\S+)", course.told(student))[1]
        assert not os.path.exists(folder)


@pytest.mark.slow
def test_an_interrupt_leaves_the_marks_and_nothing_that_runs(course):
    """In a copy, where all would be marked again."""
    teacher = course.teacher.parent / "interrupted"
    shutil.copytree(course.teacher, teacher)
    marked = {name: teacher / "autograded" / name / LAB for name in ("ada", "ben", "cyd")}
    shutil.rmtree(marked["cyd"])
    command = [sys.executable, "-m", "hvdlab", "autograde", LAB]
    marking = subprocess.Popen(command, cwd=teacher, stderr=subprocess.PIPE, text=True)
    while not any("sleep" in command for command in left(course)):  # cyd's
        assert marking.poll() is None
        time.sleep(0.2)
    marking.send_signal(signal.SIGINT)
    assert "interrupted; what is marked stays marked" in marking.communicate(timeout=60)[1]
    assert marking.returncode == 130
    assert left(course) == [] and list(course.temporary.iterdir()) == []
    assert [name for name, folder in marked.items() if folder.exists()] == ["ada", "ben"]


@pytest.mark.slow
def test_what_cannot_be_marked_is_told(course):
    broken = course.teacher.parent / "broken"
    shutil.copytree(course.teacher, broken, ignore=shutil.ignore_patterns("cyd"))
    (broken / "submitted" / "ben" / LAB / f"{LAB}.ipynb").write_text("no notebook")
    done = CliRunner().invoke(app, ["autograde", "01", "--course", str(broken), "--force"])
    assert done.exit_code == 1 and "marked: 1 of 2" in done.stdout
    assert "not marked: ben: nbformat.reader.NotJSONError: Notebook does not" in done.stdout
    assert "ada" not in done.stdout


def test_an_nbgrader_that_ends_without_a_word_has_not_marked(tmp_path):
    (tmp_path / "nbgrader_config.py").write_text("import os\nos._exit(3)")
    (tmp_path / "submitted" / "ada" / LAB).mkdir(parents=True)
    done = CliRunner().invoke(app, ["autograde", "01", "--course", str(tmp_path)])
    assert done.exit_code == 1 and "marked: 0 of 1" in done.stdout
    assert "not marked: ada: nbgrader ended with exit code 3" in done.stdout


def test_an_nbgrader_that_never_ends_is_ended(tmp_path):
    (tmp_path / "nbgrader_config.py").write_text(
        "import subprocess, time\nsubprocess.Popen(['sleep', '4321'])\ntime.sleep(600)"
    )
    (tmp_path / "submitted" / "ada" / LAB).mkdir(parents=True)
    ((student, problem),) = mark(tmp_path, "01", limit=5)
    assert student == "ada" and problem.startswith("nbgrader was still running after 5 s")
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "4321"]
    ]


def test_kernels_speak_over_sockets_where_their_folder_has_a_short_name():
    for folder, transport in (("/tmp/hvdlab-grade-x", "ipc"), (f"/tmp/{'x' * 90}", "tcp")):
        execute = Execute()
        execute.nb, execute._folder = nbformat.v4.new_notebook(), Path(folder)
        assert execute.create_kernel_manager().transport == transport


def test_there_must_be_something_to_mark(tmp_path):
    done = CliRunner().invoke(app, ["autograde", "01", "--course", str(tmp_path)])
    assert done.exit_code == 1 and "is no course's folder" in done.output
    (tmp_path / "nbgrader_config.py").touch()
    done = CliRunner().invoke(app, ["autograde", "01", "--course", str(tmp_path)])
    assert done.exit_code == 1 and "no submission of lab 01" in done.output


@pytest.mark.slow
def test_the_feedback_shows_points_and_verdicts(course):
    assert "(Score: 7.0 / 7.0)" in course.feedback("ada")
    told = course.feedback("ben")
    assert "(Score: 2.0 / 7.0)" in told and "not done yet" in told


@pytest.mark.parametrize("path", find(LABS), ids=lambda path: path.parent.name)
def test_nbgrader_and_the_builder_make_the_same_notebook_for_students(path):
    config = Config()
    configure(config)
    notebook = instructor(read(path))
    MetadataValidator().validate_nb(notebook)
    for step in (ClearSolutions(config=config), ClearHiddenTests(config=config)):
        notebook, _ = step.preprocess(notebook, {})
    committed = nbformat.read(paths(path)[0], 4)
    assert [c.source for c in notebook.cells] == [c.source for c in committed.cells]
