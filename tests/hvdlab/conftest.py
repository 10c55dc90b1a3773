"""Real data, a real HTTP mirror on this machine, and processes that use them."""

import gzip
import http.server
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hvdlab import data

ROOT = Path(__file__).parents[2]
LIMIT = 240  # seconds; ends a hang, measures nothing
SHOW = """
import hashlib, sys
from hvdlab import data
found = data.load(sys.argv[1])
print(hashlib.sha256(found.train_images).hexdigest(), len(found.train_labels), found.is_sample)
"""


class Mirror(http.server.ThreadingHTTPServer):
    """Serves files from memory; counts requests; can be slow, short of bytes or wrong."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = dict(files)
        self.requests: list[str] = []
        self.gate = threading.Event()  # closed: every answer stops half-way until it opens
        self.gate.set()
        self.half_sent = threading.Event()
        self.cut: set[str] = set()  # answers that end after half of the promised bytes
        super().__init__(("127.0.0.1", 0), _Answer)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address) -> None:
        """A client that was killed is part of the test."""


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        server.requests.append(self.path)
        content = server.files.get(self.path)
        if content is None:
            server.gate.wait(60)
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        half = len(content) // 2
        self.wfile.write(content[:half])
        self.wfile.flush()
        server.half_sent.set()
        sent = half
        while not server.gate.wait(5):  # a server that is silent for long would be given up
            self.wfile.write(content[sent : sent + 1])
            self.wfile.flush()
            sent += 1
        if self.path not in server.cut:
            self.wfile.write(content[sent:])

    def log_message(self, *words) -> None:
        """Quiet."""


@pytest.fixture(scope="session")
def mirror_files(full_sets):
    """Every file of both sets as a mirror serves it: path to gzip bytes."""
    return {
        f"/{name}/{file.name}.gz": gzip.compress(full_sets[name].contents[role], 1)
        for name, spec in data.SETS.items()
        for role, file in spec.files.items()
    }


@pytest.fixture
def mirror(mirror_files):
    server = Mirror(mirror_files)
    yield server
    server.gate.set()
    server.shutdown()
    server.server_close()


class Lab:
    """Runs programs with a cache of their own and only the sources of the test."""

    def __init__(self, folder: Path, mirror: Mirror) -> None:
        self.folder = folder
        self.cache = folder / "cache" / "hvdlite" / "data"
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "HVDLITE_DATA_MIRROR": mirror.url,
            "HVDLITE_DATA_SOURCES": "folder,cache,mirror",
            "COLUMNS": "200",
        }
        self.environment.pop("HVDLITE_DATA_DIR", None)
        self.running: list[subprocess.Popen] = []

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen:
        """Start python with these arguments."""
        errors = self.folder / f"stderr-{len(self.running)}.txt"
        with errors.open("w") as stream:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env={**self.environment, **environment},
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
            )
        self.running.append(process)
        return process

    def stderr(self, process: subprocess.Popen) -> str:
        """What the process has said on stderr so far."""
        return (self.folder / f"stderr-{self.running.index(process)}.txt").read_text()

    def finish(self, process: subprocess.Popen) -> tuple[str, str, int]:
        """stdout, stderr and the exit status, within the time limit."""
        out, _ = process.communicate(timeout=LIMIT)
        return out, self.stderr(process), process.returncode

    def wait_until_waiting(self, processes: list[subprocess.Popen], count: int) -> None:
        """Until so many of the processes have said that they wait for another."""
        deadline = time.monotonic() + LIMIT
        while sum("waiting for" in self.stderr(one) for one in processes) < count:
            assert time.monotonic() < deadline, [self.stderr(one) for one in processes]
            time.sleep(0.05)

    def load(self, name: str = "fashion-mnist", **environment: str) -> subprocess.Popen:
        """Start a process that loads a set and prints its hash, length and is_sample."""
        return self.start("-c", SHOW, name, **environment)

    def load_patiently(self, name: str, **environment: str) -> tuple[str, str, int]:
        """`load` from the real network, which gets three chances, and `finish`."""
        for _ in range(3):
            out, err, code = self.finish(self.load(name, **environment))
            if out.endswith("60000 False\n"):
                break
            (self.cache / name / ".last-failure.json").unlink(missing_ok=True)
        return out, err, code

    def hvdlab(self, *arguments: str, **environment: str) -> subprocess.Popen:
        """Start the command `hvdlab`."""
        return self.start("-c", "from hvdlab.cli import app; app()", *arguments, **environment)

    def end(self) -> None:
        """No test leaves a process."""
        for process in self.running:
            process.kill()
            process.communicate()


@pytest.fixture
def lab(tmp_path, mirror):
    one = Lab(tmp_path, mirror)
    yield one
    one.end()


# Writes what a training script writes, in no time.
QUICK = """
import argparse, json, os, time
parser = argparse.ArgumentParser()
for name in ("--epochs", "--threads", "--limit"):
    parser.add_argument(name, type=int)
parser.add_argument("--log-dir")
parser.add_argument("--fail", action="store_true")
parser.add_argument("--sleep", type=float, default=0)
args = parser.parse_args()
import hvdlite
hvdlite.init()
if hvdlite.rank() == 0:
    for epoch in range(args.epochs):
        record = dict(epoch=epoch + 1, seconds=1.0, images=100, images_per_second=100.0,
                      loss=0.1, accuracy=0.5, is_warmup=epoch == 0, batch_size=10,
                      learning_rate=0.1, device="cpu")
        with open(os.path.join(args.log_dir, "epochs.jsonl"), "a") as log:
            log.write(json.dumps(record) + "\\n")
    with open(os.environ["TRACE"], "a") as trace:
        trace.write(
            f"{hvdlite.size()} {args.threads} {args.epochs} {os.getpid()} {args.limit}\\n"
        )
time.sleep(args.sleep)
if args.fail and hvdlite.size() == 2 and hvdlite.rank() == 1:
    raise SystemExit("rank 1 ran out of luck")
hvdlite.shutdown()
"""


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


class Bench:
    """Runs `hvdlab compare` with a cache of its own for results; the data is the user's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trace = folder / "trace"
        self.script = folder / "quick.py"
        self.script.write_text(QUICK)
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TRACE": str(self.trace),
            "COLUMNS": "120",
        }

    def start(self, *arguments: object, **environment: str) -> subprocess.Popen:
        """Start the command."""
        text = "from hvdlab.cli import app; app()"
        return subprocess.Popen(
            [sys.executable, "-c", text, "compare", *map(str, arguments)],
            env={**self.environment, **environment},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: object, **environment: str) -> tuple[str, str, int]:
        """Run the command to its end: stdout, stderr, exit status."""
        process = self.start(*arguments, **environment)
        try:
            out, err = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
        return out, err, process.returncode

    def ran(self) -> list[list[str]]:
        """Size, threads, epochs, process and limit of images of every job that really ran."""
        return [line.split() for line in self.trace.read_text().splitlines()]
