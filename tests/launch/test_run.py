"""Plain runs, standard input, and `run_command` as a function."""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pexpect
import pytest

from hvdrun import LaunchError, run_command

READ = (
    "import os, sys\nif os.environ['OMPI_COMM_WORLD_RANK'] == '0': print('who?', end='')\n"
    "print('got', repr(sys.stdin.read()))"
)


def test_programs_without_mpi(horovodrun):
    result = horovodrun("-np", 2, "hostname")
    name = os.uname().nodename
    assert sorted(result.out.splitlines()) == [f"[1,{r}]<stdout>:{name}" for r in (0, 1)]
    assert (result.returncode, result.err) == (0, "")


def test_ranks_are_one_world(horovodrun):
    program = "from mpi4py import MPI; c = MPI.COMM_WORLD; print(c.size, c.allreduce(c.rank + 1))"
    result = horovodrun.python(3, program)
    assert result.returncode == 0, result.err
    assert result.out.count(">:3 6\n") == 3


def test_arguments_arrive_as_they_are(horovodrun):
    words = ["--verbose", "-np", "9", "$HOME", "a b", "'", "*", "", "--"]
    result = horovodrun("-np", 1, sys.executable, "-c", "import sys; print(sys.argv[1:])", *words)
    assert result.out == f"[1,0]<stdout>:{words}\n"


def test_variables_arrive_whatever_their_names(horovodrun):
    """A shell on the way would drop those that it could not write itself, such as functions."""
    odd = {"a.b": "a 'b' $c", "BASH_FUNC_greet%%": "() {  echo greetings\n}"}
    result = horovodrun("-np", 2, "bash", "-c", "greet; env | grep '^a.b='", env=odd)
    assert sorted(result.out.splitlines()) == [
        f"[1,{rank}]<stdout>:{line}" for rank in (0, 1) for line in ("a.b=a 'b' $c", "greetings")
    ]


def test_shared_windows_do_not_use_ucx(horovodrun):
    program = "import os; print(os.environ['OMPI_MCA_osc'])"
    assert ">:^ucx\n" in horovodrun.python(1, program).out
    assert ">:rdma\n" in horovodrun.python(1, program, env={"OMPI_MCA_osc": "rdma"}).out


def test_ranks_of_one_host_look_for_no_fast_network(horovodrun):
    program = "import os, hvdlite; hvdlite.init(); print(os.environ.get('OMPI_MCA_btl'))"
    assert horovodrun.python(2, program).out.count(">:^ofi,openib,uct\n") == 2
    own = horovodrun.python(2, program, env={"OMPI_MCA_btl": "^uct"}).out
    assert own.count(">:^uct\n") == 2


def test_file_as_input_goes_to_rank_0(horovodrun, tmp_path):
    (tmp_path / "in").write_text("hello")
    with open(tmp_path / "in") as file:
        result = horovodrun.python(2, READ, stdin=file)
    assert sorted(result.out.splitlines()) == [
        "[1,0]<stdout>:who?got 'hello'",
        "[1,1]<stdout>:got ''",
    ]


def test_pipe_as_input_is_left_alone(horovodrun):
    """In a %%bash cell, the rest of the cell is in that pipe."""
    script = f"{sys.executable} -m hvdrun -np 1 cat\necho next\n"
    result = subprocess.run(
        ["bash"],
        input=script,
        env=horovodrun.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout == "next\n", result.stderr


def test_terminal_input_and_progress_bar(horovodrun):
    program = READ.replace("sys.stdin.read()", "sys.stdin.readline()")
    words = ["-m", "hvdrun", "-np", "2", sys.executable, "-c", program]
    terminal = pexpect.spawn(sys.executable, words, env=horovodrun.environment, timeout=30)
    terminal.expect_exact("who?")
    terminal.sendline("me")
    terminal.expect_exact("got 'me\\n'")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


def test_interrupt_at_the_terminal(horovodrun):
    words = ["-m", "hvdrun", "-np", "2", "sh", "-c", "echo ready; sleep 3600"]
    terminal = pexpect.spawn(sys.executable, words, env=horovodrun.environment, timeout=30)
    terminal.expect_exact("ready")
    terminal.expect_exact("ready")
    terminal.sendintr()
    terminal.expect_exact("stopped by SIGINT")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130


def open_descriptors() -> set[tuple[str, str]]:
    """This process's file descriptors, each with what it leads to.

    Those of earlier tests may be closed by the garbage collector at any time.
    """
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as the one of the listing
            found.add((fd.name, os.readlink(fd)))
    return found


@pytest.mark.parametrize("in_thread", [False, True])
def test_run_command_is_a_function(horovodrun, tmp_path, in_thread):
    codes = []

    def run() -> None:
        with open(tmp_path / "out", "wb") as out:
            environment = horovodrun.environment | {"X": "7"}
            words = ["sh", "-c", "echo $X; exit 5"]
            fd = out.fileno()
            codes.append(run_command(words, 2, env=environment, stdout=fd, stderr=fd))

    before = open_descriptors()
    if in_thread:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    else:
        run()
    assert codes == [5]
    assert b"<stdout>:7\n" in (tmp_path / "out").read_bytes()
    assert open_descriptors() - before == set()


def test_run_command_raises_for_mistakes():
    with pytest.raises(LaunchError, match="no program"):
        run_command(["no-such-program"], 2)
