"""JupyterLab in a real browser: open a lab, run all cells, see the plot, interrupt a deadlock."""

import gzip
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from hvdlab import handout

ROOT = Path(__file__).resolve().parents[2]
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
QUIET += [
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-dev-shm-usage",
]
PICTURES = os.environ.get("HVDLAB_SCREENSHOTS")  # a folder to put pictures of the pages into
LONG = 180_000  # milliseconds

expect.set_options(timeout=60_000)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """JupyterLab on a copy of the labs; the address with its token."""
    folder = tmp_path_factory.mktemp("jupyter")
    handout.write(folder, everything=True)
    # A slow machine needs longer than the lab allows to press the button by hand.
    stuck = folder / "labs" / "02_mpi_in_a_notebook" / "02_mpi_in_a_notebook.ipynb"
    stuck.write_text(stuck.read_text().replace("--limit 15", "--limit 120"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = folder / "home"
    wanted = {
        "notebook-extension/tracker": {"windowingMode": "none"},  # cells out of sight stay there
    }
    for name, values in wanted.items():
        file = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(values))
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JUPYTER_CONFIG_PATH": str(ROOT / "tools" / "jupyter"),  # as `make jupyter` does
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
    }
    # Pages of a notebook that is not trusted run no scripts, so that the replay would not move,
    # and lose their links to data.
    saved = [
        f"labs/{name}/solution/{name}.ipynb" for name in ("03_allreduce_by_hand", "08_timeline")
    ]
    trust = [sys.executable, "-m", "nbformat.sign", *(str(folder / name) for name in saved)]
    subprocess.run(trust, env=env, check=True, timeout=60, stdout=subprocess.DEVNULL)
    log = open(folder / "log", "w")
    job = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--ip=127.0.0.1", f"--port={port}", "--no-browser"]
        + ["--allow-root", "--IdentityProvider.token=test", "--ServerApp.root_dir", str(folder)],
        env=env, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 90
        while True:
            try:
                urllib.request.urlopen(f"{address}/api/status?token=test", timeout=5)
                break
            except OSError:
                assert job.poll() is None and time.monotonic() < end, Path(log.name).read_text()
                time.sleep(0.3)
        yield address
    finally:
        job.terminate()
        try:
            job.wait(30)
        except subprocess.TimeoutExpired:
            job.kill()
        log.close()


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium") or shutil.which("google-chrome")
    assert path, "no chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(60_000)
    yield page
    page.close()


def open_lab(page: Page, server: str, path: str) -> None:
    page.goto(f"{server}/lab/tree/labs/{path}?token=test&reset")
    page.wait_for_selector(".jp-Notebook-cell", timeout=LONG)
    idle = page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").first
    choose = page.locator(".jp-Dialog", has_text="Select Kernel")
    # On a slow machine JupyterLab asks for the kernel before it has heard of any.
    expect(idle.or_(choose).first).to_be_visible(timeout=LONG)
    page.wait_for_timeout(1500)
    if choose.count():
        choose.get_by_role("button", name="Select", exact=False).last.click()
    expect(idle).to_be_visible(timeout=LONG)


def menu(page: Page, *names: str) -> None:
    page.locator(".lm-MenuBar-itemLabel", has_text=re.compile(f"^{names[0]}$")).click()
    for name in names[1:]:
        page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{name}")).first.click()


def picture(page: Page, name: str) -> None:
    if PICTURES:
        page.wait_for_timeout(500)
        page.screenshot(path=str(Path(PICTURES, f"{name}.png")))


def test_a_lab_runs_in_the_browser_and_its_plots_have_a_text(server, page):
    open_lab(page, server, "01_why_data_parallelism/solution/01_why_data_parallelism.ipynb")
    expect(page.get_by_text("official Jupyter news")).to_have_count(0)
    expect(page.locator(".lm-MenuBar-itemLabel", has_text="Nbgrader")).to_have_count(0)
    menu(page, "Edit", "Clear Outputs of All Cells")
    expect(page.locator(".jp-OutputArea-output img")).to_have_count(0)
    menu(page, "Run", "Run All Cells")
    words = page.locator(".jp-OutputArea details", has_text="the efficiency falls")
    expect(words).to_be_visible(timeout=LONG)
    plot = page.locator(".jp-OutputArea-output img").last
    plot.scroll_into_view_if_needed()
    picture(page, "plot")
    assert plot.evaluate("async image => { await image.decode(); return image.naturalWidth }") > 600
    done = page.locator(".jp-OutputArea-output", has_text="four workers, one gradient: done").first
    done.scroll_into_view_if_needed()
    picture(page, "check")
    expect(page.locator("[data-mime-type='application/vnd.jupyter.error']")).to_have_count(0)


def test_the_button_ends_a_deadlock_and_the_ranks_go_on(server, page):
    open_lab(page, server, "02_mpi_in_a_notebook/02_mpi_in_a_notebook.ipynb")

    def run(text: str):
        """Run the cell with this text; its output."""
        cell = page.locator(".jp-Notebook-cell.jp-CodeCell", has_text=text).first
        cell.scroll_into_view_if_needed()
        cell.locator(".cm-content").click()
        page.keyboard.press("Control+Enter")
        return cell.locator(".jp-Cell-outputArea")

    run("%load_ext hvdlab")
    expect(run("engines.start(2)")).to_contain_text("local_rank", timeout=LONG)
    expect(run("from mpi4py import MPI")).to_contain_text("I am rank 1 of 2", timeout=LONG)
    stuck = run("--limit 120")
    expect(stuck).to_contain_text("a deadlock", timeout=LONG)
    expect(stuck).to_contain_text("rank 0 waits in comm.recv for rank 1")
    picture(page, "deadlock")
    page.keyboard.press("Escape")
    page.locator("[data-command='notebook:interrupt-kernel'], .jp-ToolbarButtonComponent"
                 "[title*='Interrupt']").first.click()  # fmt: skip
    expect(stuck).to_contain_text("ready", timeout=LONG)
    expect(run("still here:")).to_contain_text("[rank 1] still here: 2 ranks", timeout=LONG)


def test_the_replay_moves_with_its_slider(server, page):
    open_lab(page, server, "03_allreduce_by_hand/solution/03_allreduce_by_hand.ipynb")
    replay = page.locator("[id^=replay]").nth(1)
    page.wait_for_timeout(1000)
    replay.scroll_into_view_if_needed()
    expect(replay.locator(".text")).to_contain_text("Step 1: rank 0 sends chunk 0 to rank 1")
    for _ in range(3):
        replay.locator(".on").click()
    expect(replay.locator(".text")).to_contain_text("Step 4:")
    expect(replay.locator("img:visible")).to_have_count(1)
    picture(page, "replay")
    replay.locator("input").fill("6")
    expect(replay.locator(".text")).to_contain_text("End: 4 of 4 ranks have the sum of all.")


def test_a_timeline_can_be_downloaded(server, page):
    open_lab(page, server, "08_timeline/solution/08_timeline.ipynb")
    link = page.locator("a[download='training.json.gz']")
    link.scroll_into_view_if_needed()
    picture(page, "timeline")
    with page.expect_download() as got:
        link.click()
    with gzip.open(got.value.path()) as file:
        assert json.loads(file.read())
