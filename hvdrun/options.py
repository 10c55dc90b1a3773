"""The options of `horovodrun`, under Horovod's names, and the HOROVOD_* variables they stand for.

argparse, as it knows single-dash long options (-np, -cb, -hostfile) and "the rest is the command",
and as a launcher has to start fast.
"""

import argparse
import contextlib
import os
import re
from typing import Any

from hvdlite._version import __version__
from hvdrun.errors import LaunchError, say

# Names, kind (or what stands for the value in --help), variable after HOROVOD_ (or the attribute),
# section of Horovod's YAML file (or group of --help), help. What says "no effect here" has no
# meaning.
_TABLE = """
-np,-n,--num-proc N np general how many ranks
-v,--version version version general print the version
-cb,--check-build flag check_build general print what this installation can do
--completion shell completion general for the shell: eval "$(horovodrun --completion bash)"
--verbose flag verbose general say what is found and started
--disable-cache flag disable_cache general no effect here; no check is cached
--start-timeout SECONDS start_timeout general time for other hosts to answer
--network-interfaces,--network-interface NAME,... nics general network cards to use
--output-filename DIR output_filename general also write DIR/rank.N/stdout and stderr
--config-file FILE config_file general YAML file with the settings below
--fusion-threshold-mb MiB FUSION_THRESHOLD params size of the fusion buffer in MiB
--cycle-time-ms number CYCLE_TIME params no effect here
--cache-capacity number CACHE_CAPACITY params no effect here
--hierarchical-allreduce switch HIERARCHICAL_ALLREDUCE params reduce inside each host first
--hierarchical-allgather switch HIERARCHICAL_ALLGATHER params no effect here
--torus-allreduce switch TORUS_ALLREDUCE params no effect here
--autotune switch AUTOTUNE autotune no effect here
--autotune-log-file text AUTOTUNE_LOG autotune no effect here
--autotune-warmup-samples number AUTOTUNE_WARMUP_SAMPLES autotune no effect here
--autotune-steps-per-sample number AUTOTUNE_STEPS_PER_SAMPLE autotune no effect here
--autotune-bayes-opt-max-samples number AUTOTUNE_BAYES_OPT_MAX_SAMPLES autotune no effect here
--autotune-gaussian-process-noise number AUTOTUNE_GAUSSIAN_PROCESS_NOISE autotune no effect here
--timeline-filename text TIMELINE timeline write a timeline of all collectives to this file
--timeline-mark-cycles switch TIMELINE_MARK_CYCLES timeline mark cycles in the timeline
--stall-check inverse STALL_CHECK_DISABLE stall_check warn when ranks wait for others (the default)
--stall-check-warning-time-seconds number STALL_CHECK_TIME_SECONDS stall_check wait before a warning
--stall-check-shutdown-time-seconds number STALL_SHUTDOWN_TIME_SECONDS stall_check
  wait before the end
--mpi-threads-disable switch MPI_THREADS_DISABLE library_options no effect here
--num-nccl-streams number NUM_NCCL_STREAMS library_options no effect here
--thread-affinity number THREAD_AFFINITY library_options no effect here
--gloo-timeout-seconds number GLOO_TIMEOUT_SECONDS library_options no effect here
--mpi-args ARGS mpi_args library_options more arguments for mpirun
--binding-args ARGS binding_args library_options mpirun's binding; default: none
--tcp flag tcp library_options only TCP between hosts, no InfiniBand
--log-level level LOG_LEVEL logging no effect here
--log-with-timestamp inverse LOG_HIDE_TIME logging no effect here
--no-log-hide-timestamp on log_with_timestamp logging an older spelling
--log-hide-timestamp,--log-without-timestamp off log_with_timestamp logging an older spelling
-prefix-timestamp,--prefix-output-with-timestamp flag timestamps logging
  put the time before each line
-H,--hosts HOST:SLOTS,... hosts hosts default: this machine
-hostfile,--hostfile FILE hostfile hosts lines 'HOST slots=N'
--host-discovery-script X discovery hosts prints lines HOST:N, asked every second: elastic training
-p,--ssh-port port ssh_port ssh ssh port of the other hosts
-i,--ssh-identity-file FILE ssh_identity_file ssh ssh key for the other hosts
--mpi flag mpi controller no effect here; there is one runtime
--gloo flag gloo controller no effect here; there is one runtime
--jsrun flag jsrun controller not supported
--min-np,--min-num-proc N min_np elastic
  ranks with which training goes on; makes the job elastic; default: -np
--max-np,--max-num-proc N max_np elastic at most so many ranks; default: as many as there are slots
--slots-per-host,--slots N slots elastic slots of hosts for which no number is told; default: 1
--elastic-timeout SECONDS elastic_timeout elastic time to wait for --min-np slots
--reset-limit count reset_limit elastic how often ranks may start anew
--blacklist-cooldown-range,--cooldown-range range cooldown_range elastic
  seconds after which a host that failed may come back; default: it may not
"""
_OPTIONS = [option.split(maxsplit=4) for option in re.split("\n(?=-)", _TABLE.strip())]
_SETTINGS = [(names[2:], *rest) for names, *rest in _OPTIONS if rest[1].isupper()]
# The groups of Horovod's --help.
_GROUPS = {
    "params": "tuneable parameter arguments", "autotune": "autotune arguments",
    "timeline": "timeline arguments", "stall_check": "stall check arguments",
    "library_options": "library arguments", "logging": "logging arguments",
    "hosts": "host arguments", "ssh": "SSH arguments", "controller": "controller arguments",
    "elastic": "elastic arguments",
}  # fmt: skip
_SECONDS = {"start_timeout": "30", "elastic_timeout": "600"}  # where no variable says otherwise


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


def count_of_ranks(value: int | str) -> int:
    """A number of at least 1."""
    if not re.fullmatch("0*[1-9][0-9]*", str(value)):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {value!r}")
    return int(value)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


# How argparse reads an option of each kind; others are texts.
_SWITCH = {"action": argparse.BooleanOptionalAction}
_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")
_KINDS = {
    "flag": {"action": "store_true"},
    "on": {"action": "store_true", "default": None},
    "off": {"action": "store_false", "default": None},
    "version": {"action": "version", "version": __version__},
    "shell": {"choices": ["bash"]},
    "number": {"type": amount},
    "MiB": {"type": amount},
    "SECONDS": {"type": amount, "metavar": "SECONDS"},
    "count": {"type": amount, "metavar": "N"},
    "range": {"type": amount, "nargs": 2, "metavar": ("LOW", "HIGH")},
    "port": {"type": int},
    "N": {"type": count_of_ranks, "metavar": "N"},
    "NAME,...": {"type": _names, "action": "extend", "metavar": "NAME,...", "default": []},
    "ARGS": {"metavar": "ARGS", "default": ""},
    "text": {},
    "switch": _SWITCH,
    "inverse": _SWITCH,
    "level": {"type": str.upper, "choices": _LEVELS},
}
# How the value of an option is written into its variable, where that is not by `str`.
_WRITTEN = {
    "MiB": lambda value: str(int(value * 2**20)),
    "switch": lambda value: str(int(value)),
    "inverse": lambda value: str(int(not value)),
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
    groups = {key: parser.add_argument_group(title) for key, title in _GROUPS.items()}
    groups["general"] = parser
    groups["hosts"] = groups["hosts"].add_mutually_exclusive_group()
    for names, kind, variable, section, text in _OPTIONS:
        more = _KINDS.get(kind, {"metavar": kind})
        given = f"HOROVOD_{variable.upper()}"
        if variable in _SECONDS:
            more = more | {"default": os.environ.get(given, _SECONDS[variable])}
            text += f" ({given}), %(default)s by default"
        elif variable.isupper():
            text += f" ({given})"
        dest = {} if variable.isupper() else {"dest": variable}
        groups[section].add_argument(*names.split(","), help=text, **dest, **more)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
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
    elastic = [(names.split(",")[0], args.__dict__[name]) for names, _, name, section, _ in _OPTIONS
               if section == "elastic" and name not in _SECONDS]  # fmt: skip
    given = [name for name, value in elastic if value is not None]
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
    words = []
    for name, _, _, section, _ in _SETTINGS:
        # In section "autotune", --autotune-log-file is "log_file", and --autotune is "enabled".
        key = name.removeprefix("log" if section == "logging" else section.replace("_", "-"))
        key = key.strip("-").replace("-", "_") or "enabled"
        with contextlib.suppress(KeyError, TypeError):  # the file doesn't say
            value = config[section][key]
            if isinstance(value, bool):
                words.append(f"--{name}" if value else f"--no-{name}")
            elif value is not None:
                words.append(f"--{name}={value}")
    try:
        return parser.parse_args(words)
    except LaunchError as error:
        raise LaunchError(f"--config-file {path}: {error}") from None


def settings_environment(args: argparse.Namespace) -> dict[str, str]:
    """The HOROVOD_* variables that the given options stand for."""
    return {
        f"HOROVOD_{variable}": _WRITTEN.get(kind, str)(value)
        for name, kind, variable, *_ in _SETTINGS
        if (value := getattr(args, name.replace("-", "_"))) is not None
    }
