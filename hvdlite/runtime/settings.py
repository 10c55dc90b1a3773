"""Settings from the environment: Horovod's variables under their own names, ours as HVDLITE_*."""

import os
from collections.abc import Mapping

MIB = 1 << 20


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "").strip()
    try:
        return float(text or default)
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a number; unset it or give one") from None


def _switch(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "").strip().lower() not in ("", "0", "false", "no", "off")


class Settings:
    """What the environment asks for, read once by `init()`. Times in seconds, sizes in bytes.

    Raises ValueError that names the variable which makes no sense.
    """

    def __init__(self, env: Mapping[str, str] = os.environ):
        # An algorithm's name, see collectives/choose.py.
        self.allreduce = env.get("HVDLITE_ALLREDUCE", "").strip().lower() or "auto"
        if self.allreduce == "auto" and _switch(env, "HOROVOD_HIERARCHICAL_ALLREDUCE"):
            self.allreduce = "hierarchical"
        self.fusion_threshold = int(_number(env, "HOROVOD_FUSION_THRESHOLD", 64 * MIB))
        self.stall_warning_time = _number(env, "HOROVOD_STALL_CHECK_TIME_SECONDS", 60)
        if _switch(env, "HOROVOD_STALL_CHECK_DISABLE"):
            self.stall_warning_time = 0
        # 0: wait for ever
        self.stall_shutdown_time = _number(env, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0)
        self.timeline = env.get("HOROVOD_TIMELINE", "")
        self.timeline_mark_cycles = _switch(env, "HOROVOD_TIMELINE_MARK_CYCLES")
        self.shared_memory_limit = int(_number(env, "HVDLITE_SHARED_MEMORY_MB", 1 << 42) * MIB)
        # 0: ask MPI which ranks share memory
        self.ranks_per_host = int(_number(env, "HVDLITE_RANKS_PER_HOST", 0))
