"""Every lab runs from top to bottom as the student gets it, with nothing written."""

import pytest

from hvdlab.builder import student

USUAL = ("00",)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_students_lab_runs_and_says_what_is_not_done_yet(lab, run_lab):
    verdicts = run_lab(student, lab)
    assert verdicts
    for name, told in verdicts.items():
        assert "not done yet" in told and "✘" not in told, (name, told)
