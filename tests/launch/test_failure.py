"""What MPI launchers print when a rank ends badly, and what the user reads instead."""

import os

import pytest

from hvdrun.failure import Messages, Report, explain, explain_reports
from hvdrun.output import Sink, Stream

DASHES, EQUALS = "-" * 74 + "\n", "=" * 83 + "\n"
TEXTS = {
    "Open MPI 5 exit": (
        DASHES + "prterun detected that one or more processes exited with non-zero status,\n"
        "thus causing the job to be terminated. The first process to do so was:\n\n"
        "   Process name: [prterun-vm-8017@1,1]\n   Exit code:    3\n" + DASHES,
        (3, "rank 1 exited with code 3; the other ranks were stopped."),
    ),
    "Open MPI 4 exit": (
        DASHES + "Primary job  terminated normally, but 1 process returned\n"
        "a non-zero exit code. Per user-direction, the job has been aborted.\n" + DASHES
        + DASHES + "mpirun detected that one or more processes exited with non-zero status, thus\n"
        "causing the job to be terminated. The first process to do so was:\n\n"
        "  Process name: [[13864,1],1]\n  Exit code:    3\n" + DASHES,
        (3, "rank 1 exited with code 3; the other ranks were stopped."),
    ),
    "Open MPI 4 signal": (
        DASHES + "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 "
        "(Killed).\n" + DASHES,
        (137, "rank 1 was killed by signal 9 (SIGKILL); is the machine out of memory?"),
    ),
    "Open MPI 5 without MPI's end": (
        DASHES + "prterun has exited due to process rank 1 with PID 77 on node vm exiting\n"
        "improperly. There are three reasons this could occur:\n" + DASHES + "\0\n",
        (1, "rank 1 ended in MPI's midst (by os._exit, or before hvd.init()); the other ranks were "
         "stopped."),
    ),
    "MPI_Abort": (
        DASHES + "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n"
        "  Proc: [[53085,1],1]\n  Errorcode: 7\n\nNOTE: invoking MPI_ABORT causes\n" + DASHES
        + DASHES + 'prterun has exited due to process rank 1 with PID 0 on node vm calling\n"abort"'
        ".\n" + DASHES,
        (7, "rank 1 exited with code 7; the other ranks were stopped."),
    ),
    "MPICH signal": (
        "\n" + EQUALS + "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
        "=   PID 23185 RUNNING AT vm\n=   EXIT CODE: 11\n=   CLEANING UP REMAINING PROCESSES\n"
        + EQUALS + "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault "
        "(signal 11)\n"
        "This typically refers to a problem with your application.\n"
        "Please see the FAQ page for debugging suggestions\n",
        (139, "a rank was killed by signal 11 (SIGSEGV); the other ranks were stopped."),
    ),
    "Intel MPI signal": (
        EQUALS + "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
        "=   RANK 1 PID 77 RUNNING AT vm\n=   KILLED BY SIGNAL: 9 (Killed)\n" + EQUALS,
        (137, "rank 1 was killed by signal 9 (SIGKILL); is the machine out of memory?"),
    ),
    "Intel MPI exit": (
        EQUALS + "=   RANK 1 PID 77 RUNNING AT vm\n=   EXIT STATUS: 3\n" + EQUALS,
        (3, "rank 1 exited with code 3; the other ranks were stopped."),
    ),
    "srun exit": (
        "srun: error: n01: task 1: Exited with exit code 3\n",
        (3, "rank 1 exited with code 3; the other ranks were stopped."),
    ),
    "srun signal": (
        "srun: error: n01: task 1: Segmentation fault\n",
        (139, "rank 1 was killed by signal 11 (SIGSEGV); the other ranks were stopped."),
    ),
}  # fmt: skip


@pytest.fixture
def messages():
    read, write = os.pipe()
    sink = Sink(write)
    streams = {(1, "stderr"): Stream(b"[1,1]<stderr>:", sink)}
    messages = Messages(sink, streams, {})

    def shown() -> bytes:
        messages.close()
        os.close(write)
        with open(read, "rb") as file:
            return file.read()

    messages.shown = shown
    return messages


@pytest.mark.parametrize("text, verdict", TEXTS.values(), ids=TEXTS.keys())
def test_frame_becomes_one_line(messages, text, verdict):
    for i in range(0, len(text), 7):  # as it may come, in small parts
        messages.feed(text[i : i + 7].encode())
    assert explain(1, messages.end, {}, 2) == verdict
    assert messages.shown() == b""


def test_other_words_pass(messages):
    words = f"a warning\n{DASHES}Open MPI has no network.\n{DASHES}the end"
    messages.feed(words.encode())
    assert messages.shown() == words.encode()
    assert messages.end == {}


def test_only_the_first_rank_to_fail_counts(messages):
    for rank in (1, 0):
        messages.feed(f"srun: error: n: task {rank}: Exited with exit code {rank + 3}\n".encode())
    assert explain(1, messages.end, {}, 2)[1].startswith("rank 1 exited with code 4")
    messages.shown()


def test_tagged_lines_of_other_hosts_go_to_their_rank(messages):
    messages.feed(b"[prterun-vm-7@1,1]<stderr>: over ")
    messages.feed(b"there\n[1,1]<stderr>:old\n[1,9]<stdout>: no such rank\n")
    assert messages.shown() == (
        b"[1,1]<stderr>:over there\n[1,1]<stderr>:old\n[1,9]<stdout>: no such rank\n"
    )


@pytest.mark.parametrize(
    "code, pids, np, verdict",
    [
        (-9, {0: 1}, 2, (137, "mpirun was killed by signal 9 (SIGKILL); all ranks were stopped.")),
        (5, {0: 1}, 2, (5, "a rank exited with code 5.")),
        (5, {0: 1}, 1, (5, "rank 0 exited with code 5.")),
        (213, {}, 2, (213, "no rank was started: mpirun ended with code 213.")),
    ],
)
def test_ends_that_mpirun_does_not_explain(code, pids, np, verdict):
    assert explain(code, {}, pids, np) == verdict


@pytest.mark.parametrize(
    "reports, verdict",
    [
        ({}, None),
        ({0: Report(0, None)}, None),
        ({0: Report(1, 2)}, None),  # killed, perhaps: mpirun knows
        ({2: Report(7, None), 0: Report(1, 2)},
         (7, "rank 2 exited with code 7; the other ranks were stopped.")),
        ({0: Report(1, 2), 2: Report(7, None)},
         (7, "rank 2 exited with code 7; the other ranks were stopped.")),
        ({1: Report(0, None), 0: Report(3, None)},
         (3, "rank 0 exited with code 3; the other ranks were stopped.")),
        ({2: Report(0, None), 0: Report(1, 2), 1: Report(1, 2)},
         (1, "rank 2 ended early, with code 0, while others still waited for it; rank 0 then "
          "exited with code 1. All ranks must make the same number of steps.")),
    ],
)  # fmt: skip
def test_the_cause_is_named_and_not_the_victim(reports, verdict):
    assert explain_reports(reports, 3) == verdict
