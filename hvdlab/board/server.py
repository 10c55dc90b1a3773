"""The page: tornado's server, one page for the trainer, one without names for the projector."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import re
import secrets
import socket
from collections import Counter, defaultdict
from pathlib import Path

import tornado.httpserver
import tornado.ioloop
import tornado.netutil
import tornado.template
import tornado.web

from . import send
from .room import Room

EVERY = 2.0  # seconds between two looks of the page, and into the shared folder
_BODY = 4 << 10  # bytes of a message, and more than any
_TOKENS = "board-tokens.json"


class _Handler(tornado.web.RequestHandler):
    """What all answers have in common; `initialize` gets the room and the token that it wants."""

    def initialize(self, room: Room, token: str) -> None:
        self.room, self.token = room, token

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.clear_header("Server")

    def prepare(self) -> None:
        given = self.request.headers.get("Authorization", "").removeprefix("token ")
        given = given or self.get_query_argument("token", "")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            self.set_status(403)
            self.finish("this is not the board's token")

    def check_xsrf_cookie(self) -> None:
        """There are no cookies: the token is in each request."""


class _Verdict(_Handler):
    """What the students send."""

    def post(self) -> None:
        try:
            self.finish(self.room.take(json.loads(self.request.body)))
        except OverflowError as error:
            self.set_status(429)
            self.finish(str(error))
        except (ValueError, RecursionError) as error:
            self.set_status(400)
            self.finish(str(error))


class _Join(_Handler):
    """What a browser shows of the address that students give to `hvdlab join`."""

    def initialize(self) -> None:
        pass

    def prepare(self) -> None:
        """The token is in the address itself."""

    def get(self) -> None:
        asked = self.request
        address = f"{asked.protocol}://{asked.host}{asked.path}"
        if not re.fullmatch(r"[\w.:/\[\]-]+", address):  # who asks chooses the host's name
            address = "ADDRESS, which is that of this page"
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"Type this in a terminal:\n\n    hvdlab join {address}\n")


class _Page(_Handler):
    """The page as a whole, or with ?part what changes in it."""

    def initialize(self, room: Room, token: str, names: bool) -> None:
        super().initialize(room, token)
        self.names = names

    def get(self) -> None:
        nonce = secrets.token_urlsafe(16)
        self.set_header(
            "Content-Security-Policy",
            f"default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        )
        labs = self.room.labs()
        lab = self.get_query_argument("lab", "") or (labs[0] if labs else "")
        students = sorted(self.room.students.values(), key=lambda one: one.name.casefold())
        # At the projector stands nothing that one student alone can put there.
        exercises = self.room.exercises(lab, others=self.names)
        mistakes = self.room.mistakes(at_least=1 if self.names else 2)
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for student in students:
            for (of, exercise), verdict in student.verdicts.items():
                if of == lab:
                    counts[exercise][verdict.result] += 1
        self.render(
            "page.html",
            part="part" in self.request.query_arguments,
            names=self.names,
            nonce=nonce,
            labs=sorted(labs),
            lab=lab,
            exercises=exercises,
            counts=counts,
            students=students,
            stuck=[(one, one.stuck()) for one in students if one.stuck()],
            silent=[(one, n) for one in students if (n := self.room.silent(one, lab))],
            mistakes=mistakes,
            every=int(1000 * EVERY),
        )


def application(room: Room, join: str, trainer: str) -> tornado.web.Application:
    """Students send with the token `join`; the pages want `trainer`."""
    page = {"room": room, "token": trainer}
    return tornado.web.Application(
        [
            (r"/verdict", _Verdict, {"room": room, "token": join}),
            (r"/", _Page, {**page, "names": True}),
            (r"/projector", _Page, {**page, "names": False}),
            (f"/{re.escape(join)}", _Join),
        ],
        template_path=str(Path(__file__).parent),
        log_function=lambda handler: None,
    )


def tokens(renew: bool) -> tuple[str, str]:
    """The students' and the trainer's token: the same ones until they are renewed.

    So a hub's variable stays right. Raises OSError where they can't be kept.
    """
    file = send.settings_file().with_name(_TOKENS)
    try:
        join, trainer = json.loads(file.read_text())
        if not renew:
            return join, trainer
    except (OSError, ValueError, TypeError):
        pass
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    found = secrets.token_urlsafe(12), secrets.token_urlsafe(24)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        json.dump(found, out)
    return found


def run(host: str, port: int, folder: Path | None, silence: float, renew: bool) -> None:
    """Serve until interrupted. Raises OSError where the port or the folder can't be had."""
    join, trainer = tokens(renew)
    if folder is not None:
        folder = folder.expanduser().absolute()
        if not folder.exists():
            folder.mkdir(parents=True)
            folder.chmod(0o1733)  # all may put a file there; the trainer alone sees which there are
    sockets = tornado.netutil.bind_sockets(port, host)
    asyncio.run(_serve(sockets, Room(60 * silence), folder, host, join, trainer))


async def _serve(
    sockets: list[socket.socket],
    room: Room,
    folder: Path | None,
    host: str,
    join: str,
    trainer: str,
) -> None:
    server = tornado.httpserver.HTTPServer(
        application(room, join, trainer),
        max_body_size=_BODY,
        max_buffer_size=4 * _BODY,
        max_header_size=2 * _BODY,
        idle_connection_timeout=30,
        body_timeout=5,
    )
    server.add_sockets(sockets)
    port = sockets[0].getsockname()[1]
    here = f"http://127.0.0.1:{port}"
    alone = host in ("127.0.0.1", "localhost", "::1")
    address = str(folder) if folder else f"{here if alone else reachable(host, port)}/{join}"
    print(f"Your page:      {here}/?token={trainer}")
    print(f"Projector:      {here}/projector?token={trainer}")
    print(f"Students type:  hvdlab join {address}")
    print(f"A hub sets:     {send.ADDRESS}={address}")
    if alone and not folder:
        print("Only this machine reaches it; --host 0.0.0.0 opens it to your network.")
    print("Ctrl-C ends it.", flush=True)
    if folder:
        tornado.ioloop.PeriodicCallback(lambda: room.read(folder), 1000 * EVERY).start()
    try:
        await asyncio.Event().wait()
    finally:
        server.stop()
        await server.close_all_connections()


def reachable(host: str, port: int) -> str:
    """The address by which other machines find this one."""
    if host in ("0.0.0.0", "::", ""):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))  # chooses a network, and sends nothing
                host = probe.getsockname()[0]
            except OSError:
                host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
