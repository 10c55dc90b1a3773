"""Settings from the environment: Horovod's variables under their own names, ours as HVDLITE_*."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

MIB = 1 << 20
ALGORITHMS = ("auto", "shm", "mpi", "ring", "ps", "hierarchical")


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a number; unset it or give one") from None


def _switch(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "").strip().lower() not in ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Settings:
    """What the environment asks for, read once by `init()`. Times in seconds, sizes in bytes."""

    fusion_threshold: int = 64 * MIB
    stall_warning_time: float = 60.0
    stall_shutdown_time: float = 0.0  # 0: wait for ever
    timeline: str = ""
    timeline_mark_cycles: bool = False
    allreduce: str = "auto"
    shared_memory_limit: int = 1 << 62
    ranks_per_host: int = 0  # 0: ask MPI which ranks share memory

    @classmethod
    def from_environment(cls, env: Mapping[str, str] = os.environ) -> "Settings":
        """Read the settings; raises ValueError that names the variable which makes no sense."""
        allreduce = env.get("HVDLITE_ALLREDUCE", "").strip().lower() or "auto"
        if allreduce not in ALGORITHMS:
            raise ValueError(
                f"HVDLITE_ALLREDUCE={allreduce!r}: choose one of {', '.join(ALGORITHMS)}"
            )
        if allreduce == "auto" and _switch(env, "HOROVOD_HIERARCHICAL_ALLREDUCE"):
            allreduce = "hierarchical"
        warning = _number(env, "HOROVOD_STALL_CHECK_TIME_SECONDS", 60)
        if _switch(env, "HOROVOD_STALL_CHECK_DISABLE"):
            warning = 0
        return cls(
            fusion_threshold=int(_number(env, "HOROVOD_FUSION_THRESHOLD", 64 * MIB)),
            stall_warning_time=warning,
            stall_shutdown_time=_number(env, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0),
            timeline=env.get("HOROVOD_TIMELINE", ""),
            timeline_mark_cycles=_switch(env, "HOROVOD_TIMELINE_MARK_CYCLES"),
            allreduce=allreduce,
            shared_memory_limit=int(_number(env, "HVDLITE_SHARED_MEMORY_MB", 1 << 42) * MIB),
            ranks_per_host=int(_number(env, "HVDLITE_RANKS_PER_HOST", 0)),
        )
