"""Every lab runs from top to bottom with its solutions, and all its checks are content."""

import pytest

from hvdlab.builder import instructor

USUAL = ("00", "01", "02", "03", "04")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_solved_lab_runs_and_every_exercise_is_done(lab, run_lab):
    verdicts = run_lab(instructor, lab)
    assert verdicts
    for name, told in verdicts.items():
        assert ": done" in told and "✘" not in told and "○" not in told, (name, told)
