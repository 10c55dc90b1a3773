"""Runs that are done are not done again, as long as nothing that matters has changed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path

import platformdirs

from ..data.catalog import DataError
from ..data.files import write_whole
from . import machine
from .job import Epoch, Job

# Settings that change how a run goes.
PREFIXES = ("HOROVOD_", "HVDLITE_", "OMP_", "MKL_", "CUDA_", "NCCL_", "OMPI_MCA_", "MALLOC_")


def key(job: Job, repeat: int) -> str:
    """A name for a run: equal only if script, code, arguments, machine and settings are."""
    digest = hashlib.sha256()
    facts = {
        "job": {**asdict(job), "script": job.script.name},
        "repeat": repeat,
        "versions": machine.versions(),
        "machine": machine.describe(),
        "settings": {k: v for k, v in sorted(os.environ.items()) if k.startswith(PREFIXES)},
    }
    digest.update(json.dumps(facts, sort_keys=True).encode())
    for file in [job.script, *machine.runtime_sources()]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _path(name: str) -> Path:
    return platformdirs.user_cache_path("hvdlite") / "compare" / f"{name}.json"


def load(name: str) -> list[Epoch] | None:
    """The epochs of a run that was done before, or None."""
    try:
        return json.loads(_path(name).read_text())
    except (OSError, ValueError):
        return None


def store(name: str, epochs: list[Epoch]) -> None:
    """Keep a run's epochs; without room or permission the run is just done again later."""
    if any(epoch.get("is_sample") for epoch in epochs):
        return  # the next run may find the full data
    with contextlib.suppress(DataError):
        write_whole(_path(name), json.dumps(epochs).encode())
