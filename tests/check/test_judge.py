"""The judge, on what real runs of real programs recorded, and the library of these programs.

`PYTHONPATH=tests python -m checks_library.table tests/check/recordings --only NAMES` records anew.
"""

import ast
from pathlib import Path

import pytest
from checks_library import Program, library, load

from hvdlab.check.evidence import Epoch, Phase, Step
from hvdlab.check.reported import values_of
from hvdlab.check.run import IMPORTS, Recording, warm

RECORDINGS = Path(__file__).with_name("recordings")
LIBRARY = {program.file: program for program in library()}
RECORDED = sorted(path.name for path in RECORDINGS.glob("*.json.gz"))


def test_every_program_of_the_library_has_a_recording():
    assert sorted(LIBRARY) == RECORDED


@pytest.mark.parametrize("name", RECORDED)
def test_the_verdict_on_a_recording(name):
    recording, _ = load(RECORDINGS / name)
    verdict = LIBRARY[name].judge(recording)
    assert LIBRARY[name].is_as_expected(verdict), str(verdict)
    assert len(verdict.brief()) <= 10
    for step in verdict.steps:
        assert step.seen and (step.result == "done") == (step.points == step.of)
        assert bool(step.why) == (step.result != "done")


@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_cut_short_is_judged_too(name):
    """A run that ends early, at any place: what was not seen is not done, and nothing fails."""
    recording, _ = load(RECORDINGS / name)
    for share in (0.0, 0.1, 0.3, 0.6, 0.9):
        events = [each[: int(share * len(each))] for each in recording.events]
        verdict = LIBRARY[name].judge(Recording(**{**vars(recording), "events": events}))
        assert not verdict.done and verdict.ended
        assert verdict.points < verdict.of or share > 0.5


def test_evidence_is_about_ranks():
    recording, _ = load(RECORDINGS / "mnist_torch-all-the-data.json.gz")
    seen = LIBRARY["mnist_torch-all-the-data.json.gz"].judge(recording)["shard"].seen
    assert "of 256 images rank 0 read 256" in seen
    assert "rank 1 256, 256 of them also read by rank 0" in seen


def test_the_library_is_large_and_is_python():
    wrong = [program for program in LIBRARY.values() if program.breaks]
    right = [program for program in LIBRARY.values() if not program.breaks]
    assert len(wrong) >= 40 and len(right) >= 15
    assert {step for program in wrong for step in program.breaks} == {
        step.key for program in right for step in program.script.steps
    }
    for program in LIBRARY.values():
        ast.parse(program.text)


@pytest.mark.slow
@pytest.mark.parametrize("modules", sorted(set(IMPORTS.values())), ids=lambda names: names[0])
def test_solutions_are_seen_as_when_they_were_recorded(modules):
    """What observes the frameworks keeps up with their releases; a recording never changes."""
    solutions = [each for each in LIBRARY.values() if each.name == "right-solution"]
    ours = [each for each in solutions if IMPORTS[each.script.framework] == modules]
    assert len(ours) >= 2
    with warm(*modules) as nest:
        for program in ours:
            verdict = program.judge(program.record(nest=nest)[0])
            assert verdict.done and not verdict.ended, f"{program.file}: {verdict}"
            before = program.judge(load(RECORDINGS / program.file)[0])
            assert [(step.key, step.result) for step in verdict.steps] == [
                (step.key, step.result) for step in before.steps
            ]


@pytest.mark.whole
@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", LIBRARY.values(), ids=lambda program: program.file)
def test_the_verdict_on_a_run(program: Program):
    recording, _ = program.record()
    verdict = program.judge(recording)
    assert program.is_as_expected(verdict), str(verdict)


def test_seconds_are_no_metric():
    """Of losses of 0.80 and 1.13 the sum is 1.93, which may be how long an epoch took."""
    phases = [
        Phase([Epoch([Step(0.1, "", "", "", 1, ids=[1, 2], loss=loss)])]) for loss in (0.80, 1.13)
    ]
    for took in ("1.93 s", "1.9s", "1.930 sec", "1.9 seconds"):
        assert values_of(phases, 1, [f"loss 0.57 accuracy 0.72 {took}"])["loss"] == [{}]
    assert "times" in values_of(phases, 1, ["loss 1.93 same"])["loss"][0]
    assert "mean" in values_of(phases, 1, ["loss 0.965 sum"])["loss"][0]
