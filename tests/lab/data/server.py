"""A small web server of our own, whose answers can be spoilt."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves one file to all who ask; `seen` holds the Range header of every request, or None.

    It answers with the error `status` unless that is 0. `ranges`: it serves parts of the file.
    `told_length`: it sends the length first. `cut` has for each request the number of bytes after
    which it waits some seconds and closes the connection.
    """

    daemon_threads = True

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.ranges, self.status, self.told_length = content, True, 0, True
        self.silence = 0.0
        self.cut: list[int | None] = []
        self.seen: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/file"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.seen.append(wanted)
        if self.server.status:
            self.send_error(self.server.status)
            return
        start = int(wanted[len("bytes=") : -1]) if wanted and self.server.ranges else 0
        if start and start >= len(self.server.content):
            self.send_error(416)
            return
        body = self.server.content[start:]
        self.send_response(206 if start else 200)
        if self.server.told_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = self.server.cut.pop(0) if self.server.cut else None
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None and self.server.silence:
            self.wfile.flush()
            time.sleep(self.server.silence)

    def log_message(self, *_: object) -> None:
        """Keeps quiet."""


@contextmanager
def serving(content: bytes) -> Iterator[Server]:
    with Server(content) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
