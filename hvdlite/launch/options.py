"""The options of `horovodrun`, under Horovod's names, and the HOROVOD_* variables they stand for.

argparse, as it knows single-dash long options (-np, -cb, -hostfile) and "the rest is the command",
and as a launcher has to start fast.
"""

from __future__ import annotations

import argparse
import re

from hvdlite.launch.errors import LaunchError

# Option, type, variable (after HOROVOD_), section of Horovod's YAML file, help. A bool also gets a
# --no-... twin. What says "accepted" has no meaning here.
_TABLE = """
fusion-threshold-mb int FUSION_THRESHOLD params size of the fusion buffer in MiB
cycle-time-ms float CYCLE_TIME params accepted
cache-capacity int CACHE_CAPACITY params accepted
hierarchical-allreduce bool HIERARCHICAL_ALLREDUCE params reduce inside each host first
hierarchical-allgather bool HIERARCHICAL_ALLGATHER params accepted
torus-allreduce bool TORUS_ALLREDUCE params accepted
autotune bool AUTOTUNE autotune accepted
autotune-log-file str AUTOTUNE_LOG autotune accepted
autotune-warmup-samples int AUTOTUNE_WARMUP_SAMPLES autotune accepted
autotune-steps-per-sample int AUTOTUNE_STEPS_PER_SAMPLE autotune accepted
autotune-bayes-opt-max-samples int AUTOTUNE_BAYES_OPT_MAX_SAMPLES autotune accepted
autotune-gaussian-process-noise float AUTOTUNE_GAUSSIAN_PROCESS_NOISE autotune accepted
timeline-filename str TIMELINE timeline write a timeline of all collectives to this file
timeline-mark-cycles bool TIMELINE_MARK_CYCLES timeline mark cycles in the timeline
stall-check bool STALL_CHECK_DISABLE stall_check warn when ranks wait for others (the default)
stall-check-warning-time-seconds int STALL_CHECK_TIME_SECONDS stall_check wait before a warning
stall-check-shutdown-time-seconds int STALL_SHUTDOWN_TIME_SECONDS stall_check wait before the end
mpi-threads-disable bool MPI_THREADS_DISABLE library_options accepted
num-nccl-streams int NUM_NCCL_STREAMS library_options accepted
thread-affinity int THREAD_AFFINITY library_options accepted
gloo-timeout-seconds int GLOO_TIMEOUT_SECONDS library_options accepted
log-level str LOG_LEVEL logging TRACE, DEBUG, INFO, WARNING, ERROR or FATAL
log-with-timestamp bool LOG_HIDE_TIME logging log lines carry the time
"""
_SETTINGS = [line.split(maxsplit=4) for line in _TABLE.strip().splitlines()]
_LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")
_OLD_NAMES = {  # spellings that older scripts still use
    "log-with-timestamp": ("--no-log-hide-timestamp",),
    "no-log-with-timestamp": ("--log-without-timestamp", "--log-hide-timestamp"),
}
_ELASTIC = "min_np max_np slots_per_host host_discovery_script elastic_timeout reset_limit cooldown"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        message = message.replace(
            "expected one argument", "needs a value (one that starts with - is written OPTION=-x)"
        )
        raise LaunchError(f"{message} (horovodrun --help lists all options)")


def _amount(text: str) -> int | float:
    """A number of at least 0, whole where it is written so."""
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, not {text}")
    return int(text) if text.isdigit() else value


def make_parser() -> argparse.ArgumentParser:
    """All options that Horovod's launcher has; those without a meaning here say "accepted"."""
    parser = _Parser(
        prog="horovodrun",
        allow_abbrev=False,
        usage="horovodrun -np N [options] COMMAND [ARGUMENT ...]",
        description="Start COMMAND as N ranks. All that follows COMMAND belongs to it.",
    )
    add = parser.add_argument
    add("-np", "-n", "--num-proc", dest="np", metavar="N", help="how many ranks")
    add("-v", "--version", action="store_true", help="print the version")
    add("-cb", "--check-build", action="store_true", help="print what this installation can do")
    add("--verbose", action="store_true", help="say what is found and started")
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="default: this machine")
    hosts.add_argument("-hostfile", "--hostfile", metavar="FILE", help="lines 'HOST slots=N'")
    add("-p", "--ssh-port", type=int, help="ssh port of the other hosts")
    add("-i", "--ssh-identity-file", metavar="FILE", help="ssh key for the other hosts")
    add("--start-timeout", type=_amount, metavar="SECONDS", help="time for other hosts to answer")
    for name in ("--network-interfaces", "--network-interface"):
        add(name, action="append", dest="nics", metavar="NAME,...", help="network cards to use")
    add("--output-filename", metavar="DIR", help="also write DIR/rank.N/stdout and stderr")
    add("-prefix-timestamp", "--prefix-output-with-timestamp", action="store_true",
        dest="timestamps", help="put the time before each line of output")  # fmt: skip
    add("--mpi-args", default="", metavar="ARGS", help="more arguments for mpirun")
    add("--binding-args", default="", metavar="ARGS", help="mpirun's binding; default: none")
    add("--tcp", action="store_true", help="only TCP between hosts, no InfiniBand")
    add("--config-file", metavar="FILE", help="YAML file with the settings below")
    for name in ("--mpi", "--gloo", "--jsrun"):
        add(name, action="store_true", help="accepted; there is one runtime")
    add("--disable-cache", action="store_true", help="accepted; no check is cached")
    for name, kind, variable, _, text in _SETTINGS:
        dest = name.replace("-", "_")
        text = f"{text} (HOROVOD_{variable})"
        if kind == "bool":
            yes, no = ([f"--{n}", *_OLD_NAMES.get(n, ())] for n in (name, f"no-{name}"))
            add(*yes, dest=dest, action="store_const", const=True, help=text)
            add(*no, dest=dest, action="store_const", const=False, help="the opposite")
        else:
            add(f"--{name}", dest=dest, type=str if kind == "str" else _amount, help=text)
    for dest in _ELASTIC.split():
        names = [f"--{dest.replace('_', '-')}"]
        if dest in ("min_np", "max_np"):
            names.append(names[0].replace("np", "num-proc"))
        if dest == "cooldown":
            add("--blacklist-cooldown-range", nargs=2, dest=dest, help="elastic: not supported yet")
        else:
            add(*names, dest=dest, help="elastic: not supported yet")
    add("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line; raise LaunchError for anything that can't be meant."""
    args = make_parser().parse_args(argv)
    if args.command[:1] == ["--"]:
        del args.command[0]
    if args.hosts and re.fullmatch(r"[\w.-]+:\d+,?", (args.command or [""])[0]):
        hosts = f"{args.hosts},{args.command[0]}".strip(",")
        raise LaunchError(f"{args.command[0]} stands after a blank, so it would be the command; "
                          f"write -H {hosts}")  # fmt: skip
    if any(getattr(args, dest) is not None for dest in _ELASTIC.split()):
        raise LaunchError("elastic training is not supported yet; use -np and -H instead")
    if args.jsrun:
        raise LaunchError("jsrun is not supported; leave --jsrun out")
    if args.config_file:
        _read_config(args)
    if args.log_level is not None and str(args.log_level).upper() not in _LOG_LEVELS:
        raise LaunchError(f"--log-level is one of {', '.join(_LOG_LEVELS)}, not {args.log_level}")
    return args


def count_of_ranks(text: str | None) -> int:
    """The value of -np as a number of at least 1."""
    if text is None:
        raise LaunchError("how many ranks? Write -np N before the command")
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise LaunchError(f"-np takes a whole number of at least 1, not {text!r}")
    return int(text)


def _read_config(args: argparse.Namespace) -> None:
    """Fill settings that the command line leaves open from a YAML file of Horovod's layout."""
    path = args.config_file
    try:
        import yaml
    except ImportError:
        raise LaunchError("--config-file needs PyYAML: pip install pyyaml") from None
    try:
        with open(path, encoding="utf-8") as file:
            config = yaml.safe_load(file) or {}
    except OSError as error:
        raise LaunchError(f"can't read --config-file {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise LaunchError(f"--config-file {path} is not YAML: {reason}") from None
    for name, kind, _, section, _ in _SETTINGS:
        dest = name.replace("-", "_")
        # In section "autotune", --autotune-log-file is "log_file", and --autotune is "enabled".
        key = dest.removeprefix("log" if section == "logging" else section).strip("_") or "enabled"
        value = config.get(section) if isinstance(config, dict) else None
        value = value.get(key) if isinstance(value, dict) else None
        if value is None or getattr(args, dest) is not None:
            continue
        try:
            good = isinstance(value, bool) == (kind == "bool")
            value = _amount(str(value)) if kind in ("int", "float") else value
        except (ValueError, argparse.ArgumentTypeError):
            good = False
        if not good:
            raise LaunchError(f"{path}: {section}.{key} can't be {value!r}")
        setattr(args, dest, value)


def settings_environment(args: argparse.Namespace) -> dict[str, str]:
    """The HOROVOD_* variables that the given options stand for."""
    environment = {}
    for name, kind, variable, _, _ in _SETTINGS:
        value = getattr(args, name.replace("-", "_"))
        if value is None:
            continue
        if variable == "FUSION_THRESHOLD":
            value = int(value * 1024 * 1024)  # bytes
        elif kind == "bool":
            opposite = variable in ("STALL_CHECK_DISABLE", "LOG_HIDE_TIME")
            value = int(value != opposite)
        environment[f"HOROVOD_{variable}"] = str(value)
    if args.log_level is not None:
        environment["HOROVOD_LOG_LEVEL"] = str(args.log_level).upper()
    return environment
