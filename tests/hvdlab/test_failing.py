"""Programs that fail, and what is shown of them."""

import psutil
import pytest

from hvdlab import failing

PROGRAM = """
import horovod.torch as hvd
import torch
hvd.init()
def report():
    hvd.allreduce(torch.ones(hvd.rank() + 1), name="accuracy")
report()
"""


def test_the_users_frames_are_shown_and_those_of_libraries_left_out(tmp_path, capsys):
    (tmp_path / "shapes.py").write_text(PROGRAM)
    outcome = failing.run(tmp_path / "shapes.py")
    told = capsys.readouterr().out
    assert outcome.code == 1 and told.rstrip().endswith("--- exit code 1")
    assert 'File "shapes.py", line 6, in report' in told
    assert "the ranks disagree on the shape" in told
    assert "engine.py" in outcome.text and "engine.py" not in told


def test_a_program_that_hangs_is_ended_with_all_its_ranks(tmp_path, capsys):
    (tmp_path / "hangs.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(1000)\n")
    outcome = failing.run(tmp_path / "hangs.py", limit=12)
    assert outcome.code is None
    assert outcome.text.count("here") == 2
    assert "still running after 12 s" in capsys.readouterr().out
    left = [p for p in psutil.process_iter(["cmdline"]) if "hangs.py" in str(p.info["cmdline"])]
    assert [p for p in left if str(tmp_path) in str(p.info["cmdline"])] == []


def test_variables_and_arguments_arrive_and_a_missing_file_is_told(tmp_path, capsys):
    program = tmp_path / "tell.py"
    program.write_text("import os, sys; print(os.environ['MARK'], sys.argv[1])\n")
    outcome = failing.run(program, np=1, arguments=("there",), quiet=True, MARK="here")
    assert outcome.code == 0 and "here there" in outcome.text
    assert capsys.readouterr().out == ""
    with pytest.raises(FileNotFoundError):
        failing.run(tmp_path / "missing.py")
