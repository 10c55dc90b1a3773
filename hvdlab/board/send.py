"""The student's side: a verdict goes to the board in the background, or not at all.

Nothing is sent before `hvdlab join`, or without the variable HVDLAB_BOARD. A board that is down
costs a cell nothing: a thread tries, and tries again with what has come together until then.
"""

from __future__ import annotations

import atexit
import getpass
import json
import os
import random
import re
import secrets
import threading
import urllib.error
import urllib.request
from collections import deque
from pathlib import Path

ADDRESS, NAME = "HVDLAB_BOARD", "HVDLAB_NAME"  # variables that a hub may set
LIMIT = 2.0  # seconds for one message
AGAIN = 20.0  # seconds until another try at a board that is down
_AT_THE_END = 1.0  # seconds that a process may take to send its last verdicts
_KEPT = 100  # messages that wait for a board
# No proxy: the board is in the room.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def settings_file() -> Path:
    """Where `hvdlab join` keeps the address and the name, for this user alone."""
    import platformdirs

    return platformdirs.user_config_path("hvdlite") / "board.json"


def settings() -> dict[str, str]:
    """address, name, and the id of this user's file in a shared folder.

    What the student has said by `hvdlab join` goes before what the hub has set.
    """
    known = {
        "address": os.environ.get(ADDRESS, ""),
        "name": os.environ.get(NAME) or os.environ.get("JUPYTERHUB_USER") or getpass.getuser(),
    }
    try:
        return {**known, **json.loads(settings_file().read_text())}
    except (OSError, ValueError, TypeError):
        return known


def keep(**changes: str) -> dict[str, str]:
    """Change the settings of this user. Raises OSError where they can't be written."""
    file = settings_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        known = json.loads(file.read_text())
    except (OSError, ValueError):
        known = {}
    new = file.with_suffix(f".{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        json.dump({**known, **changes}, out)
    os.replace(new, file)
    return settings()


def join(address: str, name: str = "") -> tuple[str, str]:
    """Send this user's verdicts to a board from now on.

    Returns the name, and what the board says: "" if it knows the name now, else a sentence.

    A board that refuses is not kept; one that does not answer is.

    Raises:
        ValueError: that is no address of a board.
        Refused: the board says so, and why.
        OSError: the settings can't be written.
    """
    if not re.match(r"https?://[^/]+/\S+$", address):
        folder = Path(address).expanduser().absolute()
        if not folder.is_dir():
            raise ValueError(f"{address} is no board: neither http://HOST:PORT/TOKEN nor a folder")
        address = str(folder)
    asked = {"address": address, **({"name": name} if name else {})}
    known = {**settings(), **asked}
    try:
        answer = send(known, {"name": known["name"], "result": "joined"})
    except Refused as error:
        raise Refused(
            f"{address}: {error}; nothing is sent there. Copy what the trainer's board shows"
        ) from None
    except OSError:
        answer = "the board does not answer now; your checks go there when it does"
    keep(**asked)
    return known["name"], answer


def leave() -> None:
    """Send nothing more, whatever the hub has set. Raises OSError as `keep` does."""
    keep(address="")


def report(exercise: str, result: str, sentence: str = "", lab: str = "") -> None:
    """Tell the board, if there is one, of a verdict. Returns at once, and never raises an error.

    Args:
        result: "done", "open" or "wrong".
        sentence: what is not right, in words of the check's; nothing of the student's.
        lab: such as "06"; by default that of the folder that this process works in.
    """
    try:
        if not settings()["address"] or os.environ.get("NBGRADER_EXECUTION"):
            return
        message = {"exercise": exercise, "result": result, "sentence": sentence}
        _Sender.one().put({"lab": lab or _lab(), **message})
    except Exception:
        pass  # a check must not fail because of the board


def _lab() -> str:
    found = re.findall(r"/(?:old_)?(\d\d)_", f"{os.getcwd()}/")
    return found[-1] if found else ""


class Refused(OSError):
    """The board does not want it; the message says why."""


def send(known: dict[str, str], message: dict[str, str]) -> str:
    """Send one message now; what the board answers.

    Raises:
        Refused: it has no use for the message.
        OSError: it can't be reached.
    """
    address = known["address"]
    if address.startswith("/"):
        known = known if known.get("id") else keep(id=secrets.token_hex(16))
        line = json.dumps(message) + "\n"
        with open(Path(address, f"{known['id']}.jsonl"), "a") as file:
            os.fchmod(file.fileno(), 0o644)  # the folder shows its names to the trainer alone
            file.write(line)
        return ""
    address, _, token = address.rpartition("/")
    request = urllib.request.Request(
        f"{address}/verdict",
        json.dumps(message).encode(),
        {"Content-Type": "application/json", "Authorization": f"token {token}"},
    )
    try:
        with _open(request, timeout=LIMIT) as answer:
            return answer.read(300).decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        with error:
            told = error.read(300).decode("utf-8", "replace") or error.reason
        if error.code == 429 or error.code >= 500:  # it is busy
            raise OSError(told) from None
        raise Refused(told) from None


class _Sender:
    """A thread that sends, and the messages that wait for it."""

    _one: _Sender | None = None

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.waiting: deque[dict[str, str]] = deque(maxlen=_KEPT)
        self.news, self.empty = threading.Event(), threading.Event()
        threading.Thread(target=self._run, name="board", daemon=True).start()
        atexit.register(self.empty.wait, _AT_THE_END)

    @classmethod
    def one(cls) -> _Sender:
        """That of this process; a fork has none of its threads."""
        if cls._one is None or cls._one.pid != os.getpid():
            cls._one = cls()
        return cls._one

    def put(self, message: dict[str, str]) -> None:
        self.empty.clear()
        self.waiting.append(message)
        self.news.set()

    def _run(self) -> None:
        while True:
            self.news.wait(random.uniform(0.3, 1) * AGAIN if self.waiting else None)
            self.news.clear()
            try:
                while self.waiting:
                    known = settings()
                    if known["address"]:
                        self._send(known, self.waiting[0])
                    self.waiting.popleft()
            except Exception:
                pass  # later again
            self.empty.set()

    def _send(self, known: dict[str, str], message: dict[str, str]) -> None:
        try:
            send(known, {"name": known["name"], **message})
        except Refused:
            pass
