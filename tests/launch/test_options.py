"""Options: Horovod's names, the variables they stand for, and one clear line for a mistake."""

import subprocess
import sys

import pytest

from hvdlite import __version__
from hvdrun import LaunchError
from hvdrun.options import parse, settings_environment

ALL = (
    "-np 2 -H a:1,b:1 --network-interfaces eth0,eth1 --output-filename o --start-timeout 9 "
    "-p 22 -i key --mpi --mpi-args=-x --tcp --binding-args=--bind-to --fusion-threshold-mb 1 "
    "--cycle-time-ms 0.5 --cache-capacity 0 --hierarchical-allreduce --autotune "
    "--autotune-log-file l --autotune-warmup-samples 1 --autotune-steps-per-sample 1 "
    "--autotune-bayes-opt-max-samples 1 --autotune-gaussian-process-noise 0.5 "
    "--timeline-filename t --timeline-mark-cycles --no-stall-check "
    "--stall-check-warning-time-seconds 1 --stall-check-shutdown-time-seconds 2 --log-level debug "
    "--log-with-timestamp --prefix-output-with-timestamp --disable-cache --num-nccl-streams 1 "
    "--thread-affinity 1 --verbose --hierarchical-allgather --no-torus-allreduce "
    "--mpi-threads-disable --gloo-timeout-seconds 3 --network-interface lo"
)


def test_every_option_parses_and_the_rest_is_the_command():
    args = parse([*ALL.split(), "python", "train.py", "-np", "7", "--verbose", "-H", "x"])
    assert args.command == ["python", "train.py", "-np", "7", "--verbose", "-H", "x"]
    assert (args.np, args.hosts, args.ssh_port) == (2, "a:1,b:1", 22)
    assert args.nics == ["eth0", "eth1", "lo"]


@pytest.mark.parametrize(
    "words, name, value",
    [
        ("--fusion-threshold-mb 32", "FUSION_THRESHOLD", str(32 << 20)),
        ("--cycle-time-ms 3.5", "CYCLE_TIME", "3.5"),
        ("--cache-capacity 2048", "CACHE_CAPACITY", "2048"),
        ("--hierarchical-allreduce", "HIERARCHICAL_ALLREDUCE", "1"),
        ("--no-hierarchical-allreduce", "HIERARCHICAL_ALLREDUCE", "0"),
        ("--timeline-filename /t/a.json", "TIMELINE", "/t/a.json"),
        ("--timeline-mark-cycles", "TIMELINE_MARK_CYCLES", "1"),
        ("--no-stall-check", "STALL_CHECK_DISABLE", "1"),
        ("--stall-check", "STALL_CHECK_DISABLE", "0"),
        ("--stall-check-warning-time-seconds 5", "STALL_CHECK_TIME_SECONDS", "5"),
        ("--stall-check-shutdown-time-seconds 9", "STALL_SHUTDOWN_TIME_SECONDS", "9"),
        ("--log-level info", "LOG_LEVEL", "INFO"),
        ("--log-hide-timestamp", "LOG_HIDE_TIME", "1"),
        ("--log-with-timestamp", "LOG_HIDE_TIME", "0"),
        ("--num-nccl-streams 2", "NUM_NCCL_STREAMS", "2"),
    ],
)
def test_options_become_variables(words, name, value):
    assert settings_environment(parse(words.split())) == {f"HOROVOD_{name}": value}


def test_ranks_see_the_variables(horovodrun):
    program = (
        "import os; print(os.environ['HOROVOD_FUSION_THRESHOLD'], os.environ['PYTHONUNBUFFERED'])"
    )
    result = horovodrun.python(2, program, "--fusion-threshold-mb", 2)
    assert sorted(result.out.split("\n")) == ["", *(f"[1,{r}]<stdout>:2097152 1" for r in (0, 1))]


CONFIG = """
controller: mpi
params: {fusion_threshold_mb: 32, cycle_time_ms: 10, hierarchical_allreduce: true}
timeline: {filename: t.json, mark_cycles: true}
stall_check: {enabled: false, warning_time_seconds: 120}
logging: {level: INFO}
"""


def test_config_file_fills_what_the_command_line_leaves_open(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG)
    got = settings_environment(parse(["--config-file", str(path), "--cycle-time-ms", "1"]))
    assert got == {
        "HOROVOD_FUSION_THRESHOLD": str(32 << 20),
        "HOROVOD_CYCLE_TIME": "1",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
        "HOROVOD_TIMELINE": "t.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "120",
        "HOROVOD_LOG_LEVEL": "INFO",
    }


def test_a_config_file_without_pyyaml_says_what_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "c.yaml").write_text(CONFIG)
    with pytest.raises(LaunchError, match="^--config-file needs PyYAML: pip install pyyaml$"):
        parse(["--config-file", str(tmp_path / "c.yaml")])


@pytest.mark.parametrize(
    "text, says",
    [
        ("a: [", "is not YAML"),
        (
            "params: {cycle_time_ms: -1}",
            "c.yaml: argument --cycle-time-ms: must be",
        ),
        (
            "params: {hierarchical_allreduce: 7}",
            "hierarchical-allreduce: ignored",
        ),
    ],
)
def test_bad_config_file(tmp_path, text, says):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(LaunchError, match=says):
        parse(["--config-file", str(tmp_path / "c.yaml")])


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "", "²"])
def test_bad_numbers_of_ranks(text):
    with pytest.raises(LaunchError, match="-np"):
        parse(["-np", text, "true"])


@pytest.mark.parametrize(
    "words, says",
    [
        ("-np 0 ls", "-np/-n/--num-proc: must be a whole number of at least 1, not '0'"),
        ("-np -3 ls", "must be a whole number of at least 1, not '-3'"),
        ("-np two ls", "not 'two'"),
        ("-np", "-np"),
        ("ls", "how many ranks"),
        ("-np 2", "no command"),
        ("-np 2 python nope.py", "no script nope.py"),
        ("-np 2 python -u -W error nope.py -c", "no script nope.py"),
        ("-np 2 no-such-program", "no program no-such-program"),
        ("-np 2 /", "/ is a folder"),
        ("-np 2 --no-such-option ls", "--no-such-option"),
        ("-np 2 --fusion-threshold-mb -4 ls", "--fusion-threshold-mb"),
        ("-np 2 --log-level LOUD ls", "--log-level"),
        ("-np 2 --config-file no.yaml ls", "no.yaml"),
        ("-np 2 --mpi-args ' ls", "can't read --mpi-args"),
        ("-np 2 --output-filename /dev/null/x true", "can't write"),
        ("-np 2 --host-discovery-script ./x ls", "--host-discovery-script ./x: No such file"),
        ("-np 2 --jsrun ls", "--jsrun is not supported"),
        ("-np 2 -H user@localhost:2 true", "names a user; leave user@ out"),
        ("-np 2 python -", "would read its program from standard input"),
        ("-np 2 python3 -u", "would read its program from standard input"),
        ("-np 2 -H me@there:2 true", "~/.ssh/config: Host there User me"),
        ("-np 9999999 true", "needs 20000038 open files, and this session may have"),
    ],
)
def test_mistakes_end_in_one_line(horovodrun, one_line, words, says):
    assert says in one_line(horovodrun(*words.split(), timeout=20))


def test_options_are_completed_by_bash(horovodrun):
    script = horovodrun("--completion", "bash").out
    command = ["bash", "-c", script + "complete -p horovodrun"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and " --fusion-threshold-mb " in done.stdout, done.stderr


def test_script_without_a_right_to_run_is_explained(horovodrun, one_line, tmp_path):
    (tmp_path / "train.py").write_text("print(1)")
    line = one_line(horovodrun("-np", 2, tmp_path / "train.py"))
    assert f"python {tmp_path / 'train.py'}" in line


@pytest.mark.parametrize("option", ["-v", "--version"])
def test_version(horovodrun, option):
    assert horovodrun(option).out == f"{__version__}\n"


@pytest.mark.parametrize("option", ["-cb", "--check-build"])
def test_check_build_has_horovods_form(horovodrun, option):
    result = horovodrun(option)
    assert result.returncode == 0
    lines = [line.replace("[X]", "[ ]") for line in result.out.splitlines()]
    assert lines == [
        f"hvdlite v{__version__}:", "",
        "Available Frameworks:", "    [ ] TensorFlow", "    [ ] PyTorch", "    [ ] MXNet", "",
        "Available Controllers:", "    [ ] MPI", "    [ ] Gloo", "",
        "Available Tensor Operations:", "    [ ] NCCL", "    [ ] DDL", "    [ ] CCL",
        "    [ ] MPI", "    [ ] Gloo",
    ]  # fmt: skip
    assert result.out.count("[X] MPI") == 2


def test_check_build_does_not_import_frameworks():
    import subprocess

    program = (
        "import sys; from hvdrun.check_build import report; report(); "
        "print({'torch', 'tensorflow', 'cupy'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert result.stdout == "set()\n", result.stderr


def test_help_names_the_options(horovodrun):
    result = horovodrun("--help")
    assert result.returncode == 0
    for option in (
        "-np",
        "-hostfile",
        "--check-build",
        "--fusion-threshold-mb",
        "HOROVOD_TIMELINE",
        "\nSSH arguments:\n",
        "\ntuneable parameter arguments:\n",
        "\nexamples:\n  horovodrun -np 2 python train.py",
    ):
        assert option in result.out


def test_options_without_effect_are_told_in_one_line(horovodrun):
    result = horovodrun("-np", "1", "--autotune", "--cycle-time-ms", "3", "true")
    assert result.returncode == 0
    assert "horovodrun: without effect here: --cycle-time-ms, --autotune\n" in result.err


def test_options_of_elastic_jobs_alone_are_told(horovodrun):
    result = horovodrun("-np", 1, "--max-np", 2, "--reset-limit", 3, "true")
    assert result.returncode == 0
    assert "horovodrun: without effect: --max-np, --reset-limit; --min-np or" in result.err
