"""`hvdlab serve-bundle`: the trainer's machine hands the bundle out in the room."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path

import tornado.httpserver
import tornado.netutil
import tornado.web

from ..board.server import reachable


class _Bundle(tornado.web.StaticFileHandler):
    """The one file, in pieces for who asks for a piece, as downloads that go on do."""

    def set_extra_headers(self, path: str) -> None:
        self.set_header("X-Content-Type-Options", "nosniff")
        self.clear_header("Server")


class _Lines(tornado.web.RequestHandler):
    """What to type, as text."""

    def initialize(self, text: str) -> None:
        self.text = text

    def get(self) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(self.text)


def lines(address: str, name: str) -> str:
    """What a student types to fetch and install the bundle."""
    return f"curl -fOC - {address}/{name}\npython3 {name} hvdlite-course\n"


def run(bundle: Path, host: str, port: int) -> None:
    """Serve until interrupted. Raises OSError where the file or the port can't be had."""
    bundle = bundle.resolve(strict=True)
    sockets = tornado.netutil.bind_sockets(port, host)
    asyncio.run(_serve(bundle, host, sockets))


async def _serve(bundle: Path, host: str, sockets: list[socket.socket]) -> None:
    text = lines(reachable(host, sockets[0].getsockname()[1]), bundle.name)
    file = {"path": str(bundle.parent)}
    handlers = [(f"/({re.escape(bundle.name)})", _Bundle, file), ("/", _Lines, {"text": text})]
    application = tornado.web.Application(handlers, log_function=lambda handler: None)
    tornado.httpserver.HTTPServer(application).add_sockets(sockets)
    print(f"Students type:\n\n{text}")
    if host in ("127.0.0.1", "localhost", "::1"):
        print("Only this machine reaches it; --host 0.0.0.0 opens it to your network.")
    print("Ctrl-C ends it.", flush=True)
    await asyncio.Event().wait()
