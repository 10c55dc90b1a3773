"""Rules for every test: GPU tests need a GPU, and in CI nothing else may be skipped."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from mpi import pools

# A shell lets what it runs in the background ignore Ctrl-C, and so would the ranks.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if not os.environ.get("CI"):  # there, hypothesis has a profile of its own
    settings.register_profile("any machine", deadline=None)
    settings.load_profile("any machine")


# What takes long begins first, so that the lanes end together.
FOLDERS = (
    "slurm", "labs", "check", "hvdlab", "keras", "tensorflow", "lightning", "packaging", "names",
    "launch", "torch", "core",
)  # fmt: skip
# These wait for jobs most of the time; they begin among the others, so that no core is idle.
WAITING = ("slurm", "launch", "core")


def lane(nodeid: str) -> str:
    """The tests that run one after the other in one process of pytest, with `-n`: by the file.

    Those that share what takes long to make stay together: a cluster, ranks with TensorFlow.
    """
    path, _, test = nodeid.partition("::")
    folder = Path(path).parent.name
    if folder == "keras":
        kinds = [f"ranks with {kind}" for kind in ("Keras 3", "tf_keras") if kind in test]
        return kinds[0] if kinds else folder
    return folder if folder in ("slurm", "tensorflow", "lightning") else path


def places(nodeids: list[str]) -> dict[str, float]:
    """When each lane begins, from 0 to 1: those that wait are spread among those that compute."""
    folders = {lane(nodeid): Path(nodeid.partition("::")[0]).parent.name for nodeid in nodeids}
    rest = len(FOLDERS)
    order = {name: FOLDERS.index(name) if name in FOLDERS else rest for name in folders.values()}
    found: dict[str, float] = {}
    for waits in (True, False):
        kind = [each for each in folders if (folders[each] in WAITING) is waits]
        kind.sort(key=lambda each: order[folders[each]])
        found.update({each: place / len(kind) for place, each in enumerate(kind)})
    return found


@pytest.hookimpl(optionalhook=True)  # a hook of xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return lane(nodeid)

    return Lanes(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    begin = places([item.nodeid for item in items])
    items.sort(key=lambda item: (begin[lane(item.nodeid)], lane(item.nodeid)))
    needy = [item for item in items if item.get_closest_marker("gpu")]
    if needy and not _gpu_present():
        for item in needy:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(scope="session")
def ranks():
    """`ranks(2)` gives two ranks that serve the tests until the end of the session."""
    yield from pools()


@pytest.fixture(scope="session")
def full_sets():
    """Both sets in full, fetched into the user's own cache once.

    Also for tests whose ranks only read them: whoever fetches a set shows how far it is.
    """
    from hvdlab import data

    return {name: _patiently(name) for name in data.SETS}


def _patiently(name: str):
    """Fetch a set; the network gets a second chance."""
    from hvdlab import data

    try:
        return data.fetch(name)
    except data.DataError:
        time.sleep(61)  # a failure is remembered for a minute
        return data.fetch(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and not item.get_closest_marker("gpu"):
        _fail_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    report = yield
    if report.skipped:  # a whole module
        _fail_in_ci(report)
    return report


def _fail_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("CI"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where only GPU tests may be skipped: {reason}"


def _gpu_present() -> bool:
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "GPU 0" in listing.stdout
