"""A small HTTP server of files on the loopback address, whose faults a test chooses."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer:
    """Serves ``files`` by name; a context manager.

    Attributes:
        files: content by path, such as '/a.hdf5'.
        cut: by path: bytes after which answers break off, one for each of the next answers.
        delay_s: seconds that each GET of a path waits; one number for all in `every_s`.
        asked: 'GET path' with its range, in order.
        ranges: false: requests for a part get the whole.
        codes: status of the next answers, which have no content; they ask for a retry after 0 s.
        etag: tag of all files; '': none is sent; None: it follows from the content.
        length: false: no size is announced.
    """

    def __init__(self):
        self.files, self.cut, self.asked = {}, {}, []
        self.ranges, self.down, self.every_s = True, False, 0.0
        self.codes, self.etag, self.length = [], None, True
        self._turn = threading.Lock()
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self):
                served.answer(self, with_body=False)

            def do_GET(self):
                served.answer(self, with_body=True)

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc):
        self._server.shutdown()
        self._server.server_close()

    def put_folder(self, folder, prefix):
        """Serve all files of a folder below a path."""
        for path in folder.iterdir():
            self.files[f"{prefix}/{path.name}"] = path.read_bytes()

    def answer(self, request, with_body):
        asked = request.headers.get("Range", "")
        self.asked.append(f"{request.command} {request.path} {asked}".strip())
        content = self.files.get(request.path)
        code = 503 if self.down else self.codes.pop(0) if self.codes else 200
        if content is None or code != 200:
            request.send_response(code if code != 200 else 404)
            request.send_header("Retry-After", "0")
            request.end_headers()
            return
        if with_body and self.every_s and request.path.endswith(".hdf5"):
            with self._turn:
                time.sleep(self.every_s)
        etag = f'"{hash(content)}"' if self.etag is None else self.etag
        start, end = 0, len(content)
        if asked and self.ranges and request.headers.get("If-Range", etag) == etag:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
        body, part = content[start:], f"{start}-{end - 1}" if start < end else "*"
        request.send_response((206 if body else 416) if start else 200)
        if self.length:
            request.send_header("Content-Length", str(len(body)))
        if etag:
            request.send_header("ETag", etag)
        if start:
            request.send_header("Content-Range", f"bytes {part}/{end}")
        request.end_headers()
        cuts = self.cut.get(request.path)
        if with_body:
            request.wfile.write(body[: cuts.pop(0)] if cuts else body)
