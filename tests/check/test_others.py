"""The judge, on recordings of programs that others wrote, who had not read it.

They are classes, several files, options of other kinds, loops and samplers of their own; others.tsv
says what each of them is: right, or wrong at one step. Their sources are not kept.
"""

import csv
import random
from dataclasses import replace
from pathlib import Path

import pytest
from checks_library import load

from hvdlab.check.course import ALL
from hvdlab.check.judge import judge

FOLDER = Path(__file__).with_name("others")
SCRIPTS = {script.name: script for script in ALL}
with open(FOLDER / "others.tsv", newline="") as file:
    PROGRAMS = list(csv.DictReader(file, delimiter="\t"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program["program"])
def test_the_verdict_on_a_program_of_others(program):
    recording, _ = load(FOLDER / f"{program['program']}.json.gz")
    script = replace(
        SCRIPTS[program["version of"]],
        is_version=False,
        lacks=tuple(program["lacks"].split()),
        names_rate=program["names its rate"] == "yes",
    )
    verdict = judge(script, program["program"], recording)
    if program["breaks"]:
        assert program["breaks"] in verdict.failing(), str(verdict)
    else:
        assert not verdict.failing(), str(verdict)


@pytest.mark.parametrize("program", PROGRAMS[::4], ids=lambda program: program["program"])
def test_any_part_of_what_happened_can_be_judged(program):
    """Ranks end anywhere, and some of what they do is not seen."""
    recording, _ = load(FOLDER / f"{program['program']}.json.gz")
    chance = random.Random(program["program"])
    for _ in range(12):
        share = chance.choice([1.0, 0.9, 0.5])

        def some(events, share=share):
            events = events[: chance.randint(0, len(events))] if chance.random() < 0.7 else events
            return [each for each in events if chance.random() < share]

        part = replace(
            recording, events=[some(each) for each in recording.events], alone=some(recording.alone)
        )
        verdict = judge(SCRIPTS[program["version of"]], program["program"], part)
        assert "can't be judged" not in str([step.seen for step in verdict.steps])
