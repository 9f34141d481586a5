"""The report in a real browser: it loads, says what the file holds, runs nothing of the file, asks for nothing."""

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import h5py
import numpy as np
import pytest
from PIL import Image

from imitate.data.edit.target import Target
from imitate.data.quality.report.page import write_report

pytestmark = pytest.mark.browser

ELSEWHERE = "elsewhere.example"
EVIL = (
    f'"><script src="http://{ELSEWHERE}/a.js"></script><img src="http://{ELSEWHERE}/b.png" '
    "onerror=\"document.title='taken'\">"
)
WIDTH, HEIGHT = 1100, 2400
BROWSERS_OWN = ("google.com", "googleapis.com", "gstatic.com", "gvt1.com")


@pytest.fixture
def asked():
    """Hosts that were asked for something, and the port at which all hosts of the world are."""
    hosts = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            hosts.append(self.headers.get("Host", "").split(":")[0])
            self.send_response(404)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever)
        yield hosts, server.server_port
        server.shutdown()
    server.server_close()


@pytest.fixture
def browse(asked, tmp_path):
    """Runs the browser on a page; gives what it prints, its console, and the hosts that the page asked."""
    hosts, port = asked
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    assert program, "no chromium: apt-get install -y chromium"

    def run(page, *what):
        hosts.clear()
        done = subprocess.run(
            [
                program,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                f"--user-data-dir={tmp_path / 'profile'}",
                f"--host-resolver-rules=MAP * 127.0.0.1:{port}",
                f"--window-size={WIDTH},{HEIGHT}",
                "--enable-logging=stderr",
                "--virtual-time-budget=3000",
                *what,
                page.as_uri(),
            ],
            capture_output=True,
            timeout=600,
            check=True,
        )
        console = re.findall(r"CONSOLE.*", done.stderr.decode(errors="replace"))
        strange = [host for host in hosts if not host.endswith(BROWSERS_OWN)]
        return done.stdout.decode(), console, strange

    return run


@pytest.fixture
def page(demo_file, tmp_path):
    """The report of a small file in which every name is an attack."""
    path = demo_file(
        num_demos=4,
        length=[5, 10, 15, 20],
        image=True,
        obs_dims={"robot0_eef_pos": 3, "object": 10},
        filter_keys={"<b>mine": [1, 3]},
        env_meta={"env_name": EVIL, "type": 1, "env_kwargs": {"robots": [EVIL]}},
    )
    with h5py.File(path, "r+") as file:
        file["data"].attrs["note"] = EVIL
        file.move("data/demo_3", "data/demo_<script>throw 3")
        del file["mask"]
        file["data/demo_1/obs/object"][3, 4] = np.nan
    out = tmp_path / "report.html"
    write_report(path, Target(out))
    return out


def test_the_control_page_is_caught(browse, tmp_path):
    """The browser shows the faults that the other tests look for."""
    control = tmp_path / "control.html"
    control.write_text(f"<title>x</title>{EVIL}<script>throw 1</script>")
    dom, console, hosts = browse(control, "--dump-dom")
    assert "<title>taken</title>" in dom
    assert hosts.count(ELSEWHERE) == 2
    assert any("Uncaught" in line for line in console)


def test_it_loads_without_a_complaint_and_asks_for_nothing(browse, page):
    dom, console, hosts = browse(page, "--dump-dom")
    assert console == []
    assert hosts == []
    assert "<title>demos.hdf5: demonstrations</title>" in dom
    assert "<script src" not in dom
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", dom))
    assert re.search(r"4 demos 50 steps", words)
    assert "5 to 20 steps, median 12.5, mean 12.5" in words
    assert "nan 1 demo has NaN or inf in 'obs/object'" in words
    assert "4 of 4 demos solved their task (100 %)" in words.replace("\u00a0", " ").replace(
        "&nbsp;", " "
    )
    assert len(re.findall("data:image/jpeg;base64,", dom)) == 4 * 3
    assert len(re.findall(r'<path class="way solved"', dom)) == 4 * 2


@pytest.mark.slow("a browser is started")
def test_tables_sort_when_their_head_is_clicked(browse, page, tmp_path):
    """The page's own script runs under its policy: a copy without the policy clicks on 'steps' twice."""
    clicks = "<script>for (const k of [1, 2]) document.querySelector('#demos th:nth-child(5)').click()</script>"
    text = page.read_text()
    copy = tmp_path / "clicked.html"
    copy.write_text(
        re.sub(r"<meta http-equiv.*?/>", "", text).replace("</body>", clicks + "</body>")
    )
    dom, console, _ = browse(copy, "--dump-dom")
    assert console == []
    rows = dom[dom.index('id="demos"') :]
    assert re.findall(r'<td class="num">(5|10|15|20)</td>', rows) == ["20", "15", "10", "5"]
    assert 'aria-sort="descending"' in rows
    copy.write_text(text.replace("</body>", clicks + "</body>"))
    dom, console, _ = browse(copy, "--dump-dom")
    assert 'aria-sort="descending"' not in dom, "the policy stops every other script"
    assert any("Content Security Policy" in line for line in console)


@pytest.mark.nightly
def test_it_looks_like_something(browse, page, tmp_path):
    shot = tmp_path / "shot.png"
    browse(page, f"--screenshot={shot}")
    with Image.open(shot) as opened:
        assert opened.size == (WIDTH, HEIGHT)
        pixels = np.asarray(opened.convert("RGB")).astype(int)
    accent = (np.abs(pixels - (0x2A, 0x78, 0xD6)).max(axis=2) < 12).mean()
    assert 0.002 < accent < 0.3, "bars and paths"
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 100
    margins = pixels[400:, list(range(8)) + list(range(WIDTH - 8, WIDTH))].reshape(-1, 3)
    assert (margins == margins[0]).all(), "nothing runs over the edge"
