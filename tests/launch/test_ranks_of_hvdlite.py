"""Every end of one rank is the job's: soon, with its own exit code, and named in the last line."""

import pytest

START = """
from sys import exit
import os, signal, sys, time
import hvdlite as hvd
hvd.init()
from hvdlite import basics
def barrier(): basics.engine().call("barrier")
if hvd.rank() == hvd.size() - 1:
    {leave}
{others}
"""
SLEEP = "time.sleep(600)"
ARGPARSE = "import argparse; argparse.ArgumentParser().parse_args(['--no-such-option'])"


@pytest.mark.parametrize(
    "np, leave, others, code, says",
    [
        (4, "sys.exit('I fail')", "barrier()", 1, "rank 3 exited with code 1; the other ranks"),
        (2, "sys.exit(3)", SLEEP, 3, "rank 1 exited with code 3; the other ranks"),
        (2, "exit(9)", SLEEP, 9, "rank 1 exited with code 9"),
        (2, "raise SystemExit(6)", SLEEP, 6, "rank 1 exited with code 6"),
        (2, ARGPARSE, SLEEP, 2, "rank 1 exited with code 2"),
        (2, "os.kill(os.getpid(), signal.SIGINT)", SLEEP, 130, "rank 1 exited with code 130"),
        (2, "raise KeyboardInterrupt", "barrier()", 130, "rank 1 exited with code 130"),
        (2, "hvd.shutdown(); sys.exit(5)", SLEEP, 5, "rank 1 exited with code 5"),
        (2, "os._exit(0)", SLEEP, 1, "rank 1 ended in MPI's midst (by os._exit, or before"),
        (3, "sys.exit(0)", "barrier()", 1, "rank 2 ended early, with code 0, while others"),
    ],
)
def test_the_rank_that_leaves_is_named(horovodrun, np, leave, others, code, says):
    result = horovodrun.python(np, START.format(leave=leave, others=others), timeout=60)
    assert result.returncode == code, result.err
    last = result.err.rstrip("\n").splitlines()[-1]
    assert last.startswith("horovodrun: ") and says in last, result.err
    assert b"\0" not in result.stderr_bytes + result.stdout_bytes
    assert ": ." not in result.err  # after an error without words of its own


@pytest.mark.parametrize(
    "leave", ["sys.exit(0)", "sys.exit()", "raise SystemExit", "exit(None)", "pass",
              "\n    try: sys.exit(4)\n    except SystemExit as error: assert error.code == 4"],
)  # fmt: skip
def test_a_rank_may_end_well_before_the_others(horovodrun, leave):
    others = "if hvd.rank() == 0: time.sleep(2); print('went on')"
    result = horovodrun.python(2, START.format(leave=leave, others=others))
    assert (result.returncode, result.err) == (0, "")
    assert "went on" in result.out
