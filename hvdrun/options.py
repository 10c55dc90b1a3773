"""The options of `horovodrun`, under Horovod's names, and the HOROVOD_* variables they stand for.

argparse, as it knows single-dash long options (-np, -cb, -hostfile) and "the rest is the command",
and as a launcher has to start fast.
"""

import argparse
import os
import re
from typing import Any

from hvdlite._version import __version__
from hvdrun.errors import LaunchError, say

# Option, kind, variable (after HOROVOD_), section of Horovod's YAML file, help. What says
# "no effect here" has no meaning.
_TABLE = """
fusion-threshold-mb MiB FUSION_THRESHOLD params size of the fusion buffer in MiB
cycle-time-ms number CYCLE_TIME params no effect here
cache-capacity number CACHE_CAPACITY params no effect here
hierarchical-allreduce switch HIERARCHICAL_ALLREDUCE params reduce inside each host first
hierarchical-allgather switch HIERARCHICAL_ALLGATHER params no effect here
torus-allreduce switch TORUS_ALLREDUCE params no effect here
autotune switch AUTOTUNE autotune no effect here
autotune-log-file text AUTOTUNE_LOG autotune no effect here
autotune-warmup-samples number AUTOTUNE_WARMUP_SAMPLES autotune no effect here
autotune-steps-per-sample number AUTOTUNE_STEPS_PER_SAMPLE autotune no effect here
autotune-bayes-opt-max-samples number AUTOTUNE_BAYES_OPT_MAX_SAMPLES autotune no effect here
autotune-gaussian-process-noise number AUTOTUNE_GAUSSIAN_PROCESS_NOISE autotune no effect here
timeline-filename text TIMELINE timeline write a timeline of all collectives to this file
timeline-mark-cycles switch TIMELINE_MARK_CYCLES timeline mark cycles in the timeline
stall-check inverse STALL_CHECK_DISABLE stall_check warn when ranks wait for others (the default)
stall-check-warning-time-seconds number STALL_CHECK_TIME_SECONDS stall_check wait before a warning
stall-check-shutdown-time-seconds number STALL_SHUTDOWN_TIME_SECONDS stall_check wait before the end
mpi-threads-disable switch MPI_THREADS_DISABLE library_options no effect here
num-nccl-streams number NUM_NCCL_STREAMS library_options no effect here
thread-affinity number THREAD_AFFINITY library_options no effect here
gloo-timeout-seconds number GLOO_TIMEOUT_SECONDS library_options no effect here
log-level level LOG_LEVEL logging no effect here
log-with-timestamp inverse LOG_HIDE_TIME logging no effect here
"""
_SETTINGS = [line.split(maxsplit=4) for line in _TABLE.strip().splitlines()]
# The groups of Horovod's --help, by the sections of its YAML file.
_GROUPS = {
    "params": "tuneable parameter arguments", "autotune": "autotune arguments",
    "timeline": "timeline arguments", "stall_check": "stall check arguments",
    "library_options": "library arguments", "logging": "logging arguments",
}  # fmt: skip


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        value = "needs a value (one that starts with - is written OPTION=-x)"
        message = message.replace("expected one argument", value)
        raise LaunchError(f"{message} (horovodrun --help lists all options)")


def amount(text: str) -> int | float:
    """A number of at least 0, whole where it is written so."""
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, not {text}")
    return int(text) if text.isdigit() else value


def _ranks(text: str) -> int:
    if not re.fullmatch("0*[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text}")
    return int(text)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


# How argparse reads an option of each kind, and how its value is written into the variable.
_SWITCH = {"action": argparse.BooleanOptionalAction}
_LEVEL = {"type": str.upper, "choices": ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")}
_KINDS = {
    "number": ({"type": amount}, str),
    "MiB": ({"type": amount}, lambda value: str(int(value * 2**20))),
    "text": ({}, str),
    "switch": (_SWITCH, lambda value: str(int(value))),
    "inverse": (_SWITCH, lambda value: str(int(not value))),
    "level": (_LEVEL, str),
}


def make_parser() -> argparse.ArgumentParser:
    """All options that Horovod's launcher has; those without a meaning here say so."""
    parser = _Parser(
        prog="horovodrun",
        allow_abbrev=False,
        usage="horovodrun -np N [options] COMMAND [ARGUMENT ...]",
        description="Start COMMAND as N ranks. All that follows COMMAND belongs to it.",
        epilog="""examples:
  horovodrun -np 2 python train.py --epochs 3               two ranks on this machine
  horovodrun -np 8 -H node1:4,node2:4 python train.py       eight ranks on two hosts, by ssh""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    group = {key: parser.add_argument_group(title).add_argument for key, title in _GROUPS.items()}
    add("-np", "-n", "--num-proc", dest="np", metavar="N", help="how many ranks")
    add("-v", "--version", action="version", version=__version__, help="print the version")
    add("-cb", "--check-build", action="store_true", help="print what this installation can do")
    add(
        "--completion",
        choices=["bash"],
        help='for the shell: eval "$(horovodrun --completion bash)"',
    )
    add("--verbose", action="store_true", help="say what is found and started")
    add("--disable-cache", action="store_true", help="no effect here; no check is cached")
    seconds = os.environ.get("HOROVOD_START_TIMEOUT", "30")
    text = f"time for other hosts to answer (HOROVOD_START_TIMEOUT), {seconds} by default"
    add("--start-timeout", type=amount, metavar="SECONDS", default=seconds, help=text)
    add("--network-interfaces", "--network-interface", action="extend", type=_names, dest="nics",
        metavar="NAME,...", default=[], help="network cards to use")  # fmt: skip
    add("--output-filename", metavar="DIR", help="also write DIR/rank.N/stdout and stderr")
    add("--config-file", metavar="FILE", help="YAML file with the settings below")
    hosts = parser.add_argument_group("host arguments").add_mutually_exclusive_group()
    hosts.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="default: this machine")
    hosts.add_argument("-hostfile", "--hostfile", metavar="FILE", help="lines 'HOST slots=N'")
    text = "prints lines HOST:N, asked every second: elastic training"
    hosts.add_argument("--host-discovery-script", dest="discovery", metavar="X", help=text)
    ssh = parser.add_argument_group("SSH arguments").add_argument
    ssh("-p", "--ssh-port", type=int, help="ssh port of the other hosts")
    ssh("-i", "--ssh-identity-file", metavar="FILE", help="ssh key for the other hosts")
    controller = parser.add_argument_group("controller arguments").add_argument
    for name in ("--mpi", "--gloo", "--jsrun"):
        text = "not supported" if name == "--jsrun" else "no effect here; there is one runtime"
        controller(name, action="store_true", help=text)
    library, logging = group["library_options"], group["logging"]
    library("--mpi-args", default="", metavar="ARGS", help="more arguments for mpirun")
    library("--binding-args", default="", metavar="ARGS", help="mpirun's binding; default: none")
    library("--tcp", action="store_true", help="only TCP between hosts, no InfiniBand")
    for name, kind, variable, section, text in _SETTINGS:
        group[section](f"--{name}", help=f"{text} (HOROVOD_{variable})", **_KINDS[kind][0])
    names = ("-prefix-timestamp", "--prefix-output-with-timestamp")
    logging(*names, action="store_true", dest="timestamps", help="put the time before each line")
    old = {"dest": "log_with_timestamp", "default": None, "help": "an older spelling"}
    logging("--no-log-hide-timestamp", action="store_true", **old)
    logging("--log-hide-timestamp", "--log-without-timestamp", action="store_false", **old)
    elastic = parser.add_argument_group("elastic arguments").add_argument
    elastic(
        "--min-np",
        "--min-num-proc",
        type=_ranks,
        dest="min_np",
        metavar="N",
        help="ranks with which training goes on; makes the job elastic; default: -np",
    )
    elastic(
        "--max-np",
        "--max-num-proc",
        type=_ranks,
        dest="max_np",
        metavar="N",
        help="at most so many ranks; default: as many as there are slots",
    )
    elastic(
        "--slots-per-host",
        "--slots",
        type=_ranks,
        dest="slots",
        metavar="N",
        help="slots of hosts for which no number is told; default: 1",
    )
    seconds = os.environ.get("HOROVOD_ELASTIC_TIMEOUT", "600")
    text = f"time to wait for --min-np slots (HOROVOD_ELASTIC_TIMEOUT), {seconds} by default"
    elastic("--elastic-timeout", type=amount, metavar="SECONDS", default=seconds, help=text)
    elastic("--reset-limit", type=amount, metavar="N", help="how often ranks may start anew")
    elastic(
        "--blacklist-cooldown-range",
        "--cooldown-range",
        nargs=2,
        type=amount,
        dest="cooldown_range",
        metavar=("LOW", "HIGH"),
        help="seconds after which a host that failed may come back; default: it may not",
    )
    add("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line; raise LaunchError for anything that can't be meant."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.config_file:
        args = parser.parse_args(argv, _read_config(args.config_file, parser))
    if args.command[:1] == ["--"]:
        del args.command[0]
    if args.hosts and re.fullmatch(r"[\w.-]+:\d+,?", (args.command or [""])[0]):
        hosts = f"{args.hosts},{args.command[0]}".strip(",")
        raise LaunchError(f"{args.command[0]} stands after a blank, so it would be the command; "
                          f"write -H {hosts}")  # fmt: skip
    idle = [name for name, *_, text in _SETTINGS if text == "no effect here"]
    if given := [f"--{name}" for name in idle if vars(args)[name.replace("-", "_")] is not None]:
        say(f"without effect here: {', '.join(given)}")
    elastic = {"--max-np": args.max_np, "--slots": args.slots, "--reset-limit": args.reset_limit,
               "--blacklist-cooldown-range": args.cooldown_range}  # fmt: skip
    given = [name for name, value in elastic.items() if value is not None]
    if given and not is_elastic(args):
        say(f"without effect: {', '.join(given)}; --min-np or --host-discovery-script makes a job "
            "elastic")  # fmt: skip
    if args.jsrun:
        raise LaunchError("--jsrun is not supported; use -np and -H")
    return args


def is_elastic(args: argparse.Namespace) -> bool:
    """Whether ranks may come and go, by Horovod's rule."""
    return args.discovery is not None or args.min_np is not None


def completion() -> str:
    """What makes bash complete the options of horovodrun, and the names of files after them."""
    names = " ".join(sorted(make_parser()._option_string_actions))
    return f"complete -o bashdefault -o default -W '{names}' horovodrun hvdliterun\n"


def complete(options: dict[str, Any]) -> argparse.Namespace:
    """All options, by the names that `parse` gives them; those left out or None are as usual."""
    defaults = vars(parse([]))
    if unknown := options.keys() - defaults.keys():
        raise TypeError(f"no such options: {', '.join(sorted(unknown))}")
    given = {name: value for name, value in options.items() if value is not None}
    return argparse.Namespace(**defaults | given)


def count_of_ranks(value: int | str | None) -> int:
    """The value of -np as a number of at least 1."""
    if value is None:
        raise LaunchError("how many ranks? Write -np N before the command")
    if not re.fullmatch("0*[1-9][0-9]*", str(value)):
        raise LaunchError(f"-np takes a whole number of at least 1, not {value!r}")
    return int(value)


def read_file(path: str, what: str) -> str:
    """The text of a file that the user names; `what` it is to be appears in the error."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise LaunchError(f"can't read {what} {path}: {reason}") from None


def _read_config(path: str, parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The settings in a YAML file of Horovod's layout, read as if they were options."""
    try:
        import yaml

        config = yaml.safe_load(read_file(path, "--config-file"))
    except ImportError:
        raise LaunchError("--config-file needs PyYAML: pip install pyyaml") from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise LaunchError(f"--config-file {path} is not YAML: {reason}") from None
    args = argparse.Namespace()
    for name, _, _, section, _ in _SETTINGS:
        # In section "autotune", --autotune-log-file is "log_file", and --autotune is "enabled".
        key = name.removeprefix("log" if section == "logging" else section.replace("_", "-"))
        key = key.strip("-").replace("-", "_") or "enabled"
        try:
            value = config[section][key]
        except (KeyError, TypeError):  # the file doesn't say
            continue
        word = f"--{name}={value}"
        if isinstance(value, bool):
            word = f"--{name}" if value else f"--no-{name}"
        try:
            parser.parse_args([word] if value is not None else [], args)
        except LaunchError:
            raise LaunchError(f"{path}: {section}.{key} can't be {value!r}") from None
    return args


def settings_environment(args: argparse.Namespace) -> dict[str, str]:
    """The HOROVOD_* variables that the given options stand for."""
    return {
        f"HOROVOD_{variable}": _KINDS[kind][1](value)
        for name, kind, variable, *_ in _SETTINGS
        if (value := getattr(args, name.replace("-", "_"))) is not None
    }
