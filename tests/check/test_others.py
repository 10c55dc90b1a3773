"""The judge, on recordings of programs that others wrote, who had not read it.

They are classes, several files, options of other kinds, loops and samplers of their own; others.tsv
says what each of them is: right, or wrong at one step. Their sources are not kept.
"""

import csv
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
