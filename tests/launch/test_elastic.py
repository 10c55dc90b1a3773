"""Elastic jobs: hosts and ranks go, come, hang and fail, and what the launcher makes of it."""

import os
import signal
import sys
import tempfile
import time
from argparse import Namespace

import pytest

import hvdlite
from hvdrun.elastic.driver import slow_modules
from hvdrun.prepare import Preparation

# A training without a framework. What a rank does at a step is told by its argument:
# "first rank of its slot, step, Python", once in the job, as a file remembers.
TRAIN = """
import os, signal, sys, time
import hvdlite as hvd
from hvdlite.elastic.state import ObjectState, run
from hvdlite.objects import broadcast_object

who, when, what, done = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
me = int(os.environ.get("HOROVOD_RANK") or os.environ["PMIX_RANK"])

def happen(step):
    if who in (me, -1) and step == when and not os.path.exists(f"{done}.{me}"):
        open(f"{done}.{me}", "w").close()
        exec(what)

happen(0)
hvd.init()
state = ObjectState(broadcast_object, hvd.rank, step=0, sizes=[])
state.register_reset_callbacks([lambda: print("reset", hvd.rank(), hvd.size())])

@run
def train(state):
    while state.step < 12:
        state.step += 1
        happen(state.step)
        broadcast_object(state.step)
        state.sizes.append(hvd.size())
        state.commit()
        time.sleep(0.05)

train(state)
sys.stdout.write(f"{me} is {hvd.rank()} on {os.environ.get('HOROVOD_HOSTNAME')}: {state.sizes}\\n")
"""
ALL = ["localhost:2,127.0.0.1:1"]


@pytest.fixture
def train(horovodrun, tmp_path):
    """Runs TRAIN; something happens to a rank at a step, or to all of them for rank -1."""
    (tmp_path / "train.py").write_text(TRAIN)

    def run(who, step, what, *options, start=False, hosts=ALL, **more):
        given = [] if "--host-discovery-script" in options else ["-H", *hosts]
        words = ["-np", 2, *given, *options, sys.executable, tmp_path / "train.py"]
        call = horovodrun.start if start else horovodrun
        return call(*words, who, step, what, tmp_path / "done", **more)

    return run


def ends(result) -> list[str]:
    """What ranks have said at their end."""
    assert result.returncode == 0, result.err
    lines = [line.partition(">:")[2] for line in result.out.splitlines()]
    return sorted(line for line in lines if " is " in line)


@pytest.mark.parametrize(
    "what, says",
    [
        ("os.kill(os.getpid(), 9)", "rank 2 was killed by signal 9 (SIGKILL)"),
        ("raise KeyError('lost')", "rank 2 exited with code 1"),
        ("os._exit(7)", "rank 2 exited with code 7"),
        ("os._exit(0)", "rank 2"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "rank 2 was stopped"),
    ],
)
def test_the_others_go_on_from_the_last_commit(train, what, says):
    result = train(2, 5, what, "--min-np", 2, timeout=120)
    sizes = [3] * 4 + [2] * 8
    assert ends(result) == [f"{n} is {n} on localhost: {sizes}" for n in (0, 1)]
    assert says in result.err and "127.0.0.1 is left out\n" in result.err
    assert "going on with 2 ranks (localhost:2)" in result.err
    assert "Traceback" not in result.err or "KeyError" in result.err


def test_the_oldest_host_may_fail(train):
    result = train(0, 5, "os.kill(os.getpid(), 9)", "--min-np", 1)
    assert ends(result) == [f"2 is 0 on 127.0.0.1: {[3] * 4 + [1] * 8}"]
    assert "reset 0 1" in result.out


def test_a_rank_that_hangs_at_the_start_is_left_out(train):
    options = ["--min-np", 2, "--start-timeout", 4]
    result = train(2, 0, "time.sleep(3600)", *options, timeout=120)
    assert ends(result) == [f"{n} is {n} on localhost: {[2] * 12}" for n in (0, 1)]
    assert "rank 2 did not come to hvd.init() within 4 s" in result.err


def test_a_rank_that_hangs_later_is_left_out(train):
    options = ["--min-np", 2, "--stall-check-shutdown-time-seconds", 2]
    result = train(2, 5, "time.sleep(3600)", *options, timeout=120)
    assert ends(result) == [f"{n} is {n} on localhost: {[3] * 4 + [2] * 8}" for n in (0, 1)]
    assert "rank 2 hangs: it did not notice what all others have. 127.0.0.1 is" in result.err


def test_a_rank_that_ends_early_ends_the_job(train):
    result = train(2, 5, "sys.exit()", "--min-np", 1, timeout=120)
    assert result.returncode == 1
    assert "rank 2 ended early, with code 0, while others" in result.err.splitlines()[-1]


def test_a_host_comes_back_after_a_while(train):
    options = ["--min-np", 3, "--blacklist-cooldown-range", 1, 2]
    result = train(2, 5, "os.kill(os.getpid(), 9)", *options)
    assert [line.partition(": ")[2] for line in ends(result)] == [str([3] * 12)] * 3
    assert "127.0.0.1 is left out for 2 s" in result.err
    assert "3 slots are needed, and there are 2; waiting for hosts" in result.err


def test_hosts_come_and_go(train, tmp_path):
    script, hosts = tmp_path / "hosts.sh", tmp_path / "hosts"
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    hosts.write_text("localhost:1\n127.0.0.1:1\n")
    # The first rank of localhost has two more hosts join, waits for the news, and goes later.
    what = f"""
import pathlib
text = "localhost:1 127.0.0.1:1 127.0.0.2" if step == 3 else "127.0.0.1:1 127.0.0.2"
pathlib.Path({str(hosts)!r}).write_text(text.replace(" ", chr(10)))
while state._host_messages.empty(): time.sleep(0.1)
"""
    program = (tmp_path / "train.py").read_text()
    more = program.replace("step == when", "step in (3, 6)").replace("{done}", "{done}{step}")
    (tmp_path / "train.py").write_text(more)
    options = ["--min-np", 1, "--max-np", 3, "--slots", 1, "--host-discovery-script", script]
    result = train(0, 0, what, *options, timeout=120)
    sizes = [2] * 3 + [3] * 3 + [2] * 6
    assert ends(result) == [f"1 is 0 on 127.0.0.1: {sizes}", f"2 is 1 on 127.0.0.2: {sizes}"]
    assert "left out" not in result.err


def test_too_few_slots_are_waited_for(train, tmp_path):
    (tmp_path / "hosts").write_text("localhost\n127.0.0.1")
    options = ["--min-np", 2, "--elastic-timeout", 2]
    options += ["--host-discovery-script", f"cat {tmp_path / 'hosts'}"]
    result = train(1, 3, "os.kill(os.getpid(), 9)", *options)
    assert result.returncode == 137
    assert result.err.splitlines()[-1] == (
        "horovodrun: rank 1 was killed by signal 9 (SIGKILL); is the machine out of memory? "
        "2 slots are needed, and there are 1 after 2 s (--elastic-timeout)."
    )


def test_hosts_that_were_told_can_not_become_more(train):
    result = train(1, 3, "sys.exit(5)", "--min-np", 2, hosts=["localhost:1,127.0.0.1:1"])
    assert result.returncode == 5
    assert "there are 1; no host will come (--blacklist-c" in result.err.splitlines()[-1]


def test_ranks_that_all_fail_end_the_job(train):
    result = train(-1, 3, "raise KeyError('x')", "--min-np", 1, "--cooldown-range", 1, 1)
    assert result.returncode == 1
    assert result.err.splitlines()[-1].endswith("exited with code 1. All ranks have failed.")


def test_the_only_host_fails(train):
    result = train(1, 3, "os.abort()", "--min-np", 1, hosts=["localhost:2"])
    assert result.returncode == 134
    assert "rank 1 was killed by signal 6 (SIGABRT). All hosts" in result.err.splitlines()[-1]


@pytest.mark.parametrize("limit", [0, 1])
def test_ranks_start_anew_only_so_often(train, limit):
    options = ["--min-np", 1, "--reset-limit", limit]
    result = train(2, 3, "os.kill(os.getpid(), 9)", *options)
    assert result.returncode == (137 if limit == 0 else 0), result.err
    if limit == 0:
        assert result.err.splitlines()[-1].endswith("as often as --reset-limit 0 lets them.")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_an_elastic_job(train, number, tmp_path):
    job = train(2, 3, "time.sleep(3600)", "--min-np", 2, start=True)
    end = time.monotonic() + 60
    while not (tmp_path / "done.2").exists() and time.monotonic() < end:
        time.sleep(0.1)
    job.send_signal(number)
    err = job.communicate(timeout=60)[1].decode()
    assert job.returncode == 128 + number, err
    assert f"stopped by {number.name}" in err.splitlines()[-1]


def test_a_killed_launcher_leaves_nothing(train, tmp_path):
    before = set(os.listdir("/dev/shm"))
    job = train(2, 3, "time.sleep(3600)", "--min-np", 2, start=True)
    end = time.monotonic() + 60
    while not (tmp_path / "done.2").exists() and time.monotonic() < end:
        time.sleep(0.1)
    folders = {name for name in os.listdir("/dev/shm") if name.startswith("hvd-")} - before
    job.kill()
    job.communicate()
    while any(os.path.exists(f"/dev/shm/{name}") for name in folders):
        time.sleep(0.1)


@pytest.mark.parametrize("options", [["--min-np", 1], []], ids=["elastic", "plain"])
def test_a_folder_on_disk_outlives_the_job(train, horovodrun, tmp_path, options):
    """Kill the launcher, which is the end of everything, and begin once more with fewer ranks."""
    env = {"HVDLITE_ELASTIC_STATE": str(tmp_path / "new" / "folder")}
    job = train(1, 5, "time.sleep(3600)", "-np", 3, *options, start=True, env=env)
    end = time.monotonic() + 60
    while not (tmp_path / "done.1").exists() and time.monotonic() < end:
        time.sleep(0.1)
    job.kill()
    job.communicate()
    while horovodrun.processes():
        time.sleep(0.1)
    result = train(1, 5, "", *options, env=env, hosts=["localhost:2"])
    host = "localhost" if options else "None"
    assert ends(result) == [f"{n} is {n} on {host}: {[3] * 4 + [2] * 8}" for n in (0, 1)]
    assert "reset 0 2" in result.out and os.listdir(tmp_path / "new" / "folder") == ["state"]


def test_a_commit_that_does_not_come_to_its_end_is_none(train, tmp_path):
    """The process dies while it writes; what was written before counts."""
    env = {"HVDLITE_ELASTIC_STATE": str(tmp_path)}
    what = """
class Bad(list):
    __deepcopy__ = lambda self, _: self
    __reduce_ex__ = lambda *_: os.kill(os.getpid(), 9)
state.sizes = Bad()
"""
    assert train(0, 5, what, env=env).returncode == 137
    assert (tmp_path / "state.0").exists()
    assert ends(train(0, 5, "", env=env)) == [f"{n} is {n} on None: {[2] * 12}" for n in (0, 1)]


OWN = """
class Own(State):
    def __init__(self, **values):
        super().__init__(broadcast_object, hvd.rank)
        vars(self).update(values)
        self.save()

    def save(self):
        self._step, self._sizes = self.step, list(self.sizes)

    def restore(self):
        self.step, self.sizes = self._step, list(self._sizes)

    def sync(self):
        self._step, self._sizes = broadcast_object((self._step, self._sizes))
        self.restore()

state = Own(step=0, sizes=[])
"""
MORE = """
class More(ObjectState):
    sizes = None

    def save(self):
        self._sizes = list(self.sizes)
        super().save()

    def restore(self):
        self.sizes = list(self._sizes)
        super().restore()

    def sync(self):
        self._sizes = broadcast_object(self.sizes)
        super().sync()
        self.restore()

state = More(broadcast_object, hvd.rank, step=0)
state.sizes = []
"""


@pytest.mark.parametrize("made", [OWN, MORE], ids=["State", "ObjectState"])
def test_states_of_classes_of_ones_own(train, tmp_path, made):
    program = (tmp_path / "train.py").read_text()
    old = "state = ObjectState(broadcast_object, hvd.rank, step=0, sizes=[])"
    assert old in program
    program = program.replace(old, made).replace("import ObjectState", "import ObjectState, State")
    (tmp_path / "train.py").write_text(program)
    result = train(2, 5, "os.kill(os.getpid(), 9)", "--min-np", 2)
    assert ends(result) == [f"{n} is {n} on localhost: {[3] * 4 + [2] * 8}" for n in (0, 1)]


def test_a_state_that_saves_nothing_is_told(train, tmp_path):
    program = (tmp_path / "train.py").read_text()
    more = program.replace("@run", "ObjectState.save = lambda state: None\n\n@run")
    (tmp_path / "train.py").write_text(more)
    result = train(9, 0, "", "--min-np", 1)
    assert "ObjectState.save() assigns nothing to the state's attributes" in result.err


@pytest.mark.parametrize(
    "options, says",
    [
        (["--host-discovery-script", "false"], "--host-discovery-script false ended with code 1"),
        (["--host-discovery-script", "/no/such"], "/no/such: No such file"),
        (["--min-np", 4, "--max-np", 3], "--max-np 3 is less than 4"),
        (["--min-np", 0], "--min-np/--min-num-proc: must be a whole number of at least 1, not"),
        (["--min-np", 1, "--cooldown-range", 5, 2], "takes two numbers of seconds"),
        (["--min-np", 3, "-H", "localhost:2"], "3 slots are needed, and there are 2; no host"),
    ],
)
def test_wrong_options_are_told(horovodrun, one_line, options, says):
    assert says in one_line(horovodrun("-np", 2, *options, "true"))


def test_a_function_goes_on_without_a_rank(capfd):
    def train(folder):
        import os
        from pathlib import Path

        import hvdlite as hvd
        from hvdlite.elastic.state import ObjectState, run
        from hvdlite.objects import broadcast_object

        hvd.init()
        state = ObjectState(broadcast_object, hvd.rank, sizes=[])

        @run
        def loop(state):
            while len(state.sizes) < 6:
                dead = Path(folder, "dead")
                if len(state.sizes) == 3 and hvd.rank() == 2 and not dead.exists():
                    dead.touch()
                    os.kill(os.getpid(), 9)
                broadcast_object(None)  # a step
                state.sizes.append(hvd.size())
                state.commit()
            return state.sizes

        return loop(state), hvd.rank()

    with tempfile.TemporaryDirectory() as folder:
        hosts = "localhost:2,127.0.0.1:1"
        results = hvdlite.run(train, (folder,), np=3, min_np=1, max_np=4, hosts=hosts)
    assert results == [([3, 3, 3, 2, 2, 2], 0)]  # those of the first --min-np ranks
    assert "127.0.0.1 is left out" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("program", "modules"),
    [
        ("import horovod.torch as hvd", ["torch", "torch._dynamo", "hvdlite.torch"]),
        ("import tensorflow as tf\nimport keras", ["tensorflow", "keras"]),
        ("import os\nos.environ['A'] = '1'\nimport tensorflow", []),
        ("import tensorflow as tf\nwith tf.Session() as session: ...", []),
        ("import tensorflow as", []),
    ],
)
def test_what_is_imported_before_the_ranks_are_forked(program, modules, tmp_path):
    (tmp_path / "train.py").write_text(program)
    command = [sys.executable, str(tmp_path / "train.py")]
    assert slow_modules(Preparation(command, Namespace(), {})) == modules
