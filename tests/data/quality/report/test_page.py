"""The report page: what it says, what it leaves out, what it does with files that are wrong."""

import re
import shlex
import time
from html.parser import HTMLParser
from pathlib import Path

import h5py
import numpy as np
import pytest
from markupsafe import Markup

from imitate.data import DatasetFile
from imitate.data.edit.target import Target
from imitate.data.file.extents import Extents
from imitate.data.quality.report import subject as subjects
from imitate.data.quality.report.contents import data_url, places_in
from imitate.data.quality.report.page import write_report
from imitate.data.quality.report.section import number, percent, size
from imitate.data.quality.report.subject import spread, subject_of
from imitate.data.quality.report.svg import Plot, el, histogram, ticks
from imitate.errors import DatasetError
from tests.calling import call
from tests.demo_files import episode, write_demos


class Reader(HTMLParser):
    """Tags, attributes and words of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.words = set(), [], []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_data(self, data):
        self.words.append(data)

    @property
    def said(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


def report(path, out, **how):
    subject = write_report(path, Target(out), **how)
    reader = Reader()
    reader.feed(out.read_text())
    return subject, reader


EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x00&lt;"


def test_nothing_of_the_file_becomes_markup(demo_file, tmp_path):
    path = demo_file(num_demos=2, image=True, filter_keys={"m": [0]})
    with h5py.File(path, "r+") as file:
        file["data"].attrs["env_args"] = '{"env_name": "<svg onload=alert(3)>", "type": 1}'
        file["data"].attrs["<i>note"] = EVIL.replace("\x00", "\x01")
        file.move("data/demo_1", "data/demo_<iframe src=x>")
        file.move("data/demo_0/obs/object", "data/demo_0/obs/object<a href='javascript:x'>")
        file.move("mask/m", "mask/<h1 onclick=x>")
    _, reader = report(path, tmp_path / "r.html")
    assert not reader.tags & {"iframe", "object", "i", "form"}
    assert not [name for _, name, _ in reader.attributes if name.startswith("on")]
    sources = [value for tag, name, value in reader.attributes if name in ("src", "href")]
    assert all(value.startswith(("data:", "#")) for value in sources)
    assert "\x01" not in reader.said
    assert "demo_<iframe src=x>" in reader.said
    assert "<svg onload=alert(3)>" in reader.said


def test_text_of_a_drawing_is_escaped_and_markup_is_not():
    group = el("g", "<b>", Markup("<i></i>"), 3, aria_label='"', role=None)
    assert group == '<g aria-label="&#34;">&lt;b&gt;<i></i>3</g>'
    assert el("rect", x=1.25, class_="bar", y=2.0) == '<rect x="1.2" class="bar" y="2"/>'


def test_what_a_person_reads(demo_file, tmp_path):
    path = demo_file(num_demos=4, length=[5, 10, 15, 20], filter_keys={"train": [0, 1, 2]})
    with h5py.File(path, "r+") as file:
        file["data"].attrs["control_freq"] = 20.0
        file["data/demo_2"].attrs["success"] = False
        file["data/demo_3/rewards"][:4] = 1
        file["data/demo_1/obs/object"][3, 4] = np.nan
        for demo in file["data"].values():
            demo["obs/robot0_eef_quat"][:, 2] = 0.5
    subject, reader = report(path, tmp_path / "r.html")
    said = reader.said.replace("\u00a0", " ")
    wanted = """
        4 demos | 50 steps | 2 s recorded | 75 % solved | Lift | Panda | 20 Hz | train (3) | 1 to 5 | dimension 6
        Values of all 4 demos were read | demo_1 obs/object steps 3 | 50 steps of 4 demos
        5 to 20 steps, median 12.5, mean 12.5 | 3 of 4 demos solved their task (75 %). Not solved: demo_2
        robot0_eef_pos seen from above
    """
    delete = f"imitate dataset delete {shlex.quote(str(path))} --demos demo_1"
    for words in (delete, *re.split(r" \| |\n", wanted)):
        assert words.strip() in said, words
    errors = [f for f in subject.health.findings if f.level.value == "error"]
    assert re.search(rf" {len(errors)} errors? ", said)
    assert re.search(r"obs/robot0_eef_quat 4 float64 2 ", said), "the constant dimension"
    assert re.search(r"demo_1 train yes nan .*?10 1 ", said), "the line of a demo"
    assert subject.is_whole


def thirteen(path):
    """Demos with a hand, an object and a camera; half have NaN, most fail, the third is long."""
    made, turn = [], np.array([0.6, 0.0, 0.8, 0.0])
    for n in range(13):
        length = 240 if n == 2 else 4
        at = np.arange(length)
        obs = {
            "robot0_eef_pos": np.stack([at / 100, n / 10 + 0 * at, 1 - at / 200], axis=1),
            "object": np.concatenate([[n / 8, 0.25, 0.5], turn]) + 0 * at[:, None],
            "front_image": np.full((length, 4, 6, 3), n, np.uint8) + (at % 7)[:, None, None, None].astype(np.uint8),
        }  # fmt: skip
        actions = np.stack([at % 5 / 4, -(at % 3) / 4, 1.0 - 2 * (at % 4 > 1)], axis=1)
        attrs = {"success": n in (2, 3)}
        made.append(episode(length, obs, actions, rewards=(at == 3) * (1.0 + n % 4), attrs=attrs))
    robots = {"env_kwargs": {"robots": ["Panda", "Sawyer"]}}
    meta = {"env_name": "Lift", "env_version": "1.5.2", "type": 1, **robots}
    write_demos(path, made, meta, {"some": [0, 2]})
    with h5py.File(path, "r+") as file:
        for n in range(7):
            for row in [0, 2, 3, 5, 7][: 3 if n != 2 else None]:
                file[f"data/demo_{n}/obs/object"][row] = np.nan
        file["data"].attrs.update(control_freq=2.4, note=161 * "a", short=160 * "b")


def two(path):
    """Demos of one and two steps with neither a hand nor outcomes, whose actions have no limits."""
    obs = {"force": np.array([[1.0], [3.0]]), "place_pos": np.array([[0.0, 1.0], [0.0, 2.0]])}
    actions = np.array([[2.0, 5.0], [4.0, 5.0]])
    made = [episode(n, {k: v[:n] for k, v in obs.items()}, actions[:n]) for n in (1, 2)]
    write_demos(path, made, {"env_name": "Own", "type": 4})
    with h5py.File(path, "r+") as file:
        file["data"].attrs.update({f"own{n}": n for n in range(25)})


@pytest.mark.parametrize("make", [thirteen, two])
def test_the_whole_page(tmp_path, monkeypatch, make):
    """Where a change of the page is meant, look at the new one and copy it over the page that is kept."""
    monkeypatch.chdir(tmp_path)
    make("demos.hdf5")
    changed = Path("demos.hdf5").stat()
    report("demos.hdf5", Path("page.html"))
    page = Path("page.html").read_text().partition("<main>")[2].partition("<script>")[0]
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(changed.st_mtime))
    for given, kept in ((str(tmp_path), "FOLDER"), (when, "WHEN"), (size(changed.st_size), "SIZE")):
        page = page.replace(given, kept)
    page = re.sub("(?<=by imitate )[^:]+", "VERSION", page)
    page = re.sub('(?<=base64,)[^"]+', "PIXELS", page)
    page = re.sub("(<(?:[hp]|div|tr|svg|figure|section|path|rect|circle|img|text))", r"\n\1", page)
    Path("page.html").write_text(page)
    kept = Path(__file__).parents[2] / "fixtures" / f"report_{make.__name__}.html"
    assert page == kept.read_text(), f"{tmp_path}/page.html is not as {kept}"


def test_few_demos_of_many_are_read_and_the_page_says_so(demo_file, tmp_path, monkeypatch):
    path = demo_file(num_demos=9, length=10, filter_keys={"some": [1, 2, 3, 4]})
    with h5py.File(path, "r+") as file:
        file["data"].attrs["control_freq"] = 90 / 7200
    subject, reader = report(path, tmp_path / "a.html", max_demos=3)
    assert [demo.name for demo in subject.sample] == ["demo_0", "demo_4", "demo_8"]
    assert "Values of 3 of 9 demos, evenly spread, were read" in reader.said
    assert "Values were examined in 3 demos only" in reader.said
    assert "30 steps of 3 demos" in reader.said
    subject, reader = report(path, tmp_path / "b.html", filter_key="some")
    assert [demo.name for demo in subject.sample] == [f"demo_{i}" for i in (1, 2, 3, 4)]
    assert "4 demos of filter key “some”" in reader.said
    assert "2.0 h recorded" in report(path, tmp_path / "d.html")[1].said
    read = []
    monkeypatch.setattr(subjects, "MAX_BYTES", 2.5 * bytes_of(path, "demo_0"))
    how = {"filter_key": None, "max_demos": 200, "on_demo": lambda *at: read.append(at)}
    monkeypatch.setattr(subjects, "_PIECE_BYTES", 2 * 7 * 8)
    with DatasetFile(path) as file, Extents(file) as extents:
        found = subject_of(extents, **how)
        thinned = [file.read(demo.name, "actions")[::4] for demo in found.sample]
        np.testing.assert_array_equal(found.pooled("actions", 6), np.concatenate(thinned))
    assert len(found.sample) == 2
    assert read == [(1, 2), (2, 2)]
    with pytest.raises(DatasetError, match="did you mean 'some'"):
        write_report(path, Target(tmp_path / "c.html"), filter_key="sone")
    assert not (tmp_path / "c.html").exists()


def bytes_of(path, demo):
    with DatasetFile(path) as file:
        return sum(file.read(demo, key).nbytes for key in file.keys(demo))


def write_pictures(path, **how):
    random, demos = np.random.default_rng(0), []
    for _ in range(2):
        obs = {
            "front_image": random.integers(0, 256, (9, 24, 16, 3), dtype=np.uint8),
            "front_depth": random.uniform(0.5, 2, (9, 24, 16, 1)).astype(np.float32),
            "front_segmentation": random.integers(0, 5, (9, 24, 16, 1), dtype=np.int32),
        }
        demos.append(episode(9, obs, random.uniform(-1, 1, (9, 2))))
    return write_demos(path, demos, {"env_name": "x", "type": 4, "env_kwargs": {}}, **how)


@pytest.mark.parametrize("how", [{}, {"image_storage": "jpeg"}, {"image_storage": "gzip"}])
def test_thumbnails_of_each_kind(tmp_path, how):
    path = write_pictures(tmp_path / "a.hdf5", **how)
    subject, reader = report(path, tmp_path / "r.html")
    pictures = [value for tag, name, value in reader.attributes if (tag, name) == ("img", "src")]
    kinds = [value.partition(";")[0] for value in pictures]
    assert (kinds.count("data:image/jpeg"), kinds.count("data:image/png")) == (2 * 2 * 3, 2 * 3)
    assert "front_image 24 × 16 × 3 uint8" in reader.said
    assert subject.health.findings == [], "depth and segmentation are not pixels, JPEG is an image"


@pytest.mark.parametrize(
    "frame",
    [
        np.zeros((600, 800, 3), np.uint8),
        np.zeros((3, 40, 50), np.uint8),
        np.full((40, 50, 1), np.nan, np.float32),
        np.ones((40, 50, 4), np.float64),
        np.full((1, 400, 3), 7, np.int16),
    ],
)
def test_every_frame_becomes_a_small_picture(frame):
    url = data_url("obs/front", frame)
    assert url.startswith("data:image/jpeg;base64,")
    assert len(url) < 6_000


def no_actions(data):
    for demo in data.values():
        del demo["actions"]


def not_finite(data):
    for demo in data.values():
        demo["actions"][...] = demo["rewards"][...] = np.nan
        demo["obs/object"][...] = np.inf


def other_shapes(data):
    del data["demo_1/actions"], data["demo_1/obs/object"]
    data["demo_1/actions"] = np.zeros((12, 3))
    data["demo_1/obs/object"] = np.full((12, 10), b"x")


def bare(data):
    for demo in data.values():
        for key in set(demo) - {"actions"}:
            del demo[key]
        demo.attrs.clear()
    data.attrs.clear()


@pytest.mark.parametrize("damage", [no_actions, h5py.Group.clear, not_finite, other_shapes, bare])
def test_faulty_files_have_a_page_too(demo_file, tmp_path, damage):
    path = demo_file(num_demos=3, image=True)
    with h5py.File(path, "r+") as file:
        damage(file["data"])
    subject, reader = report(path, tmp_path / "r.html")
    assert subject.health.findings
    for finding in subject.health.findings:
        assert finding.code in reader.said
    assert ("It is not known which demos solved" in reader.said) is (damage is bare)


def test_command(demo_file, tmp_path):
    path = demo_file(num_demos=2)

    out = path.with_name("demos_report.html")
    assert call("dataset report", path).stdout.startswith(f"{out}: 2 demos, ")
    again = call("dataset report", path, code=2)
    assert len(again.output.splitlines()) == 1 and "--overwrite" in again.output
    call("dataset report --overwrite", path)
    before = path.read_bytes()
    call("dataset report --overwrite", path, "--out", path, code=2)
    assert path.read_bytes() == before
    call("dataset report none.hdf5", code=2)


# ---- drawing -----------------------------------------------------------------------------------------


def test_ticks_are_round_and_few():
    assert (ticks(0, 10), ticks(-1, 1, 4)) == ([0, 2, 4, 6, 8, 10], [-1, -0.5, 0, 0.5, 1])
    assert ticks(33, 105, 5) == [40, 60, 80, 100]


def test_points_lie_where_their_numbers_say():
    plot = Plot((0, 10), (0, 4), width=158, height=142)  # 100 x 100 inside
    assert (plot.at(0, 4), plot.at(5, 1)) == ((46, 8), (96, 83))
    square = Plot((0, 1), (0, 4), width=158, height=142, equal=True)
    assert (square.x_range, square.y_range) == ((-1.5, 2.5), (0, 4))


def test_bars_count_everything_once():
    drawn = histogram(np.array([3, 3, 4, 9]), noun="demo", label="steps")
    assert re.findall(r"<title>(.*?)</title>", drawn) == ["3: 2 demos", "4: 1 demo", "9: 1 demo"]
    drawn = histogram(np.linspace(-1, 1, 101), noun="step", label="x", limits=(-1.1, 1.1), bins=11)
    counts = [int(n) for n in re.findall(r": (\d+) steps", drawn)]
    assert (len(counts), sum(counts)) == (11, 101)


@pytest.mark.parametrize(("broken", "more"), [(6, ""), (7, " and 1 more")])
def test_a_finding_names_six_places(demo_file, tmp_path, broken, more):
    path = demo_file(num_demos=8, length=3)
    with h5py.File(path, "r+") as file:
        for number in range(broken):
            file[f"data/demo_{number}/obs/object"][1, 0] = np.nan
    _, reader = report(path, tmp_path / "r.html")
    found = re.search(r"demo_5 obs/object steps 1((?: and \d+ more)?)", reader.said)
    assert found[1] == more


def test_positions_stand_before_unit_quaternions():
    random = np.random.default_rng(0)
    turn = random.normal(size=(2, 5, 4))
    turn /= np.linalg.norm(turn, axis=2, keepdims=True)
    place = random.normal(size=(2, 5, 3))
    scene = np.concatenate([place[0], turn[0], place[1], turn[1], place[0]], axis=1)
    assert places_in("obs/object", scene) == [0, 7]
    assert places_in("obs/object", place[0]) == [0]
    last = np.array([[9.0, 1.0, 2.0, 3.0, 0.6, 0.0, 0.8, 0.0]])
    assert places_in("obs/object", last) == [1]
    assert places_in("obs/cube_pos", place[0]) == [0]
    assert places_in("obs/force", place[0]) == []


def test_words():
    sizes = " ".join(size(n) for n in (999, 1000, 123456, 2.5e9, 3e12))
    assert sizes == "999 B 1 kB 123 kB 2.5 GB 3 TB"
    values = (0, 0.00099, 0.001, 0.125, 0.999, 0.9991, 1)
    shares = [percent(x).replace("\u00a0", " ") for x in values]
    assert shares == ["0 %", "< 0.1 %", "0.1 %", "12.5 %", "99.9 %", "> 99.9 %", "100 %"]
    assert (number(None), number(-0.123456)) == ("–", "−0.1235")
    assert spread(list("abcdefg"), 3) == ["a", "d", "g"]
