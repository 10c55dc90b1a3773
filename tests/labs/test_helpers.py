"""Checks, predictions and timings, as the cells of the labs use them."""

import json

import pytest

from hvdlab import jobs, style, timing
from hvdlab import predict as prediction
from hvdlab.exercise import Check
from hvdlab.slurm.cluster import SlurmError
from hvdlab.timing import Timing


def test_a_check_goes_on_after_what_is_wrong(capsys):
    with Check("sums") as check:
        check.that(False, "first", "It was 3.", "add them.")
        check.that(True, "second")
    assert check.result == "wrong" and [line[0] for line in check.lines] == ["wrong", "done"]
    told = capsys.readouterr().out
    assert "sums: not right yet" in told and "It was 3. Hint: add them." in told


@pytest.mark.parametrize("value", [None, ..., [None, 1]])
def test_nothing_written_is_not_done_yet_and_no_error(value):
    with Check("empty") as check:
        check.value(value)
        raise AssertionError("never reached")
    assert check.result == "open" and "not done yet" in str(check)


def test_an_error_in_the_students_code_is_part_of_the_verdict():
    with Check("broken") as check:
        check.that(1 / 0, "never said")
    assert check.result == "wrong" and "ZeroDivisionError" in str(check)
    with pytest.raises(KeyboardInterrupt), Check("interrupted"):
        raise KeyboardInterrupt


def test_a_check_that_looks_at_nothing_is_not_passed():
    with Check("empty") as check:
        pass
    assert check.result == "wrong"


def test_the_autograder_gets_an_exception(monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    with pytest.raises(AssertionError, match="sums: not right yet"), Check("sums") as check:
        check.that(False, "wrong")
    with Check("fine") as check:
        check.that(True, "right")


def test_student_text_does_not_become_markup():
    with Check("<b>") as check:
        check.that(False, "<script>alert(1)</script>", "<img src=x>")
    page = check._repr_html_()
    assert "<script" not in page and "<img" not in page


@pytest.fixture
def book(tmp_path, monkeypatch):
    (tmp_path / "00_welcome").mkdir()
    (tmp_path / "03_ring").mkdir()
    monkeypatch.chdir(tmp_path / "03_ring")
    monkeypatch.delenv("HVDLAB_LEDGER", raising=False)
    return tmp_path / "predictions.json"


def test_predictions_are_kept_beside_the_labs(book):
    took = Timing((0.010, 0.012, 0.011))
    prediction.predict("step", 20, "ms", "How long?").reveal(took, scale=1000)
    prediction.predict("size", 8, "KiB", "From where?").reveal(64)
    kept = json.loads(book.read_text())
    assert list(kept) == ["step", "size"]
    assert kept["step"]["measured"] == pytest.approx(11) and kept["step"]["low"] == 10
    assert "1.8 times too high" in prediction.Prediction(**kept["step"]).verdict()
    assert "8 times too low" in prediction.Prediction(**kept["size"]).verdict()
    near = prediction.Prediction("threads", "How fast?", "times", guess=0.8, measured=0.767)
    assert near.verdict().endswith("Nearly right.")
    prediction.ledger()


def test_without_a_guess_the_answer_stays_hidden(book, capsys):
    asked = prediction.predict("step", None, "ms", "How long?")
    capsys.readouterr()
    asked.reveal(123.0)
    assert not book.exists() and "123" not in capsys.readouterr().out
    with pytest.raises(TypeError, match="a number of ms"):
        prediction.predict("step", "ten", "ms", "How long?")


def test_a_spoilt_ledger_is_begun_anew(book):
    book.write_text("{not json")
    prediction.predict("a", 1, "s", "How long?").reveal(2)
    assert list(json.loads(book.read_text())) == ["a"]


def test_no_conclusion_where_the_noise_is_larger_than_the_effect():
    quiet, noisy = Timing((1.0, 1.01, 1.02)), Timing((0.9, 1.1, 1.3))
    fast = Timing((0.5, 0.51, 0.52))
    assert timing.clearly_less(fast, quiet) is True
    assert timing.clearly_less(quiet, fast) is False
    assert timing.clearly_less(quiet, noisy) is None
    assert "no conclusion" in timing.compare(quiet, noisy, "a", "b")
    assert "b is clearly faster than a" in timing.compare(quiet, fast, "a", "b")


def test_times_say_their_unit_and_spread():
    assert Timing((0.0123, 0.0119, 0.0134)).text() == "12.3 ms (11.9 ms to 13.4 ms)"
    assert timing.slowest([[1, 5], [2, 3]]).times == (2, 5)
    with pytest.raises(ValueError, match="at least 2"):
        timing.measure(lambda: None, repeats=1)
    assert len(timing.measure(lambda: None, repeats=5).times) == 5


def test_a_figure_without_a_text_is_refused():
    fig, _ = style.figure()
    with pytest.raises(ValueError, match="what the figure shows"):
        style.show(fig, "plot")


def test_without_slurm_a_notebook_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("hvdlab.slurm.cluster._path", lambda: str(tmp_path))
    assert jobs.connect() == ""
    assert "apt-get install" in capsys.readouterr().out
    jobs.disconnect()


def test_a_file_that_is_no_script_is_not_submitted(tmp_path):
    (tmp_path / "job").write_text("srun hostname\n")
    with pytest.raises(SlurmError, match="must begin with a line such as #!/bin/bash"):
        jobs.submit(tmp_path / "job")
