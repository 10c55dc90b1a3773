"""Rules for every test: GPU tests need a GPU, and in CI nothing else may be skipped."""

import os
import subprocess

import pytest
from hypothesis import settings
from mpi import Ranks

if not os.environ.get("CI"):  # there, hypothesis has a profile of its own
    settings.register_profile("any machine", deadline=None)
    settings.load_profile("any machine")


# What takes long begins first, so that the lanes end together.
FOLDERS = (
    "slurm", "labs", "check", "hvdlab", "keras", "tensorflow", "launch", "torch", "core",
)  # fmt: skip
# Fixtures of a session that take long to make: whoever uses one runs in the same lane.
SHARED = ("cluster", "keras_ranks", "torch_ranks")


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _put_into_lanes(items)
    needy = [item for item in items if item.get_closest_marker("gpu")]
    if needy and not _gpu_present():
        for item in needy:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


def _put_into_lanes(items: list[pytest.Item]) -> None:
    """With `-n`, tests that share a lane run one after the other in one process of pytest.

    Those of one file do; and so do those that share a fixture which takes long to make.
    """
    for item in items:
        shared = [name for name in SHARED if name in item.fixturenames]
        lane = shared[0] if shared else "/".join(item.path.parts[-2:])
        if shared and hasattr(item, "callspec"):
            lane += str(item.callspec.params.get(shared[0], ""))
        item.add_marker(pytest.mark.xdist_group(lane))

    def order(item: pytest.Item) -> int:
        folder = item.path.parent.name
        return FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)

    items.sort(key=order)


@pytest.fixture(scope="session")
def ranks():
    """`ranks(2)` gives two ranks that serve the tests until the end of the session."""
    pools: dict[int, Ranks] = {}

    def pool(np: int) -> Ranks:
        return pools.setdefault(np, Ranks(np))

    yield pool
    for each in pools.values():
        each.stop()


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
