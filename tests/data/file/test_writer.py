import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from imitate.cli.main import app
from imitate.data import DatasetFile, DatasetWriter, Episode, finish_partial
from imitate.errors import ConfigError, DatasetError

META = {"env_name": "Lift", "type": 1, "env_kwargs": {"robots": "Panda"}}


def episode(length=3, **changes):
    values = {
        "obs": {"x": np.arange(length * 2, dtype=np.float64).reshape(length, 2)},
        "actions": np.full((length, 2), 0.5),
        "rewards": np.arange(length),
        "terminals": [False] * (length - 1) + [True],
        "timeouts": [False] * length,
    }
    return Episode(**{**values, **changes})


def test_layout_in_the_file(tmp_path):
    path = tmp_path / "a.hdf5"
    with DatasetWriter(path, META, control_freq=20) as writer:
        first = writer.append_episode(
            episode(3, states=np.ones((3, 4)), attrs={"success": True, "ep_meta": {"a": 1}})
        )
        second = writer.append_episode(episode(2, states=np.zeros((2, 4))), name="my demo")
        writer.add_filter_key("train", [second])
    assert (first, second) == ("demo_0", "my demo")
    with h5py.File(path) as file:
        assert json.loads(file["data"].attrs["env_args"]) == META
        assert file["data"].attrs["total"] == 5
        assert file["data"].attrs["imitate_format"] == 1
        assert file["data"].attrs["control_freq"] == 20.0
        demo = file["data/demo_0"]
        assert demo.attrs["num_samples"] == 3
        assert demo.attrs["success"]
        assert json.loads(demo.attrs["ep_meta"]) == {"a": 1}
        assert demo["actions"].shape == (3, 2)
        np.testing.assert_array_equal(demo["obs/x"][()], [[0, 1], [2, 3], [4, 5]])
        np.testing.assert_array_equal(demo["rewards"][()], [0, 1, 2])
        np.testing.assert_array_equal(demo["terminals"][()], [0, 0, 1])
        np.testing.assert_array_equal(demo["dones"][()], [0, 0, 1])
        np.testing.assert_array_equal(demo["timeouts"][()], [0, 0, 0])
        assert demo["states"].shape == (3, 4)
        assert file["mask/train"][()].tolist() == [b"my demo"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.hdf5"]


def test_step_by_step(tmp_path):
    path = tmp_path / "a.hdf5"
    with DatasetWriter(path, META) as writer:
        writer.start_episode()
        writer.append(obs={"x": [9.0]}, action=[0.0])
        writer.discard_episode()
        writer.start_episode()
        for step in range(3):
            writer.append(
                obs={"x": [float(step)], "image": np.full((2, 2, 3), step, dtype=np.uint8)},
                action=[0.1 * step],
                reward=step,
                state=[step, step],
                interventions=step == 1,
            )
        assert writer.finish_episode(success=False, language="lift it") == "demo_0"
    with DatasetFile(path) as file:
        assert file.demos() == ["demo_0"]
        assert file.read("demo_0", "obs/x").tolist() == [[0.0], [1.0], [2.0]]
        assert file.read("demo_0", "obs/image").dtype == np.uint8
        assert file.read("demo_0", "terminals").tolist() == [0, 0, 0]
        assert file.read("demo_0", "timeouts").tolist() == [0, 0, 1]
        assert file.read("demo_0", "interventions").tolist() == [False, True, False]
        assert file.attrs("demo_0") == {"num_samples": 3, "success": False, "language": "lift it"}


def test_compressed_images_read_back_equal(tmp_path):
    image = np.zeros((3, 32, 32, 3), dtype=np.uint8)
    with DatasetWriter(tmp_path / "a.hdf5", META, image_storage="gzip") as writer:
        writer.append_episode(episode(3, obs={"image": image}))
    with h5py.File(tmp_path / "a.hdf5") as file:
        stored = file["data/demo_0/obs/image"]
        assert stored.compression == "gzip"
        assert stored.id.get_storage_size() < image.nbytes / 10
        np.testing.assert_array_equal(stored[()], image)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"actions": np.ones(3)}, ["'actions'", "(3,)", "(T, A)"]),
        ({"actions": np.ones((0, 2))}, ["'actions'", "at least 1"]),
        ({"rewards": [1.0, 2.0]}, ["'rewards'", "3 steps"]),
        ({"rewards": np.ones((3, 2))}, ["'rewards'", "expected (T,)"]),
        ({"obs": {"x": np.ones((4, 1))}}, ["'obs/x'", "3 steps"]),
        ({"obs": {"x": [[1.0], [np.nan], [1.0]]}}, ["'obs/x'", "NaN"]),
        ({"actions": [[0.0], [np.inf], [0.0]]}, ["'actions'", "inf"]),
        ({"obs": {"x": [[1.0], [1.0, 2.0], [1.0]]}}, ["'obs/x'", "not an array of numbers"]),
        ({"obs": {"x": ["a", "b", "c"]}}, ["'obs/x'", "not an array of numbers"]),
        ({"attrs": {"env": object()}}, ["'env'", "object"]),
        ({"attrs": {"big": np.zeros(10_000)}}, ["'big'", "80000 bytes"]),
    ],
)
def test_a_malformed_episode_is_refused_and_the_file_goes_on(tmp_path, changes, words):
    with DatasetWriter(tmp_path / "a.hdf5", META) as writer:
        with pytest.raises(DatasetError) as error:
            writer.append_episode(episode(3, **changes))
        assert all(word in str(error.value) for word in [*words, "demo_0", "a.hdf5"])
        writer.append_episode(episode(3))
    with DatasetFile(tmp_path / "a.hdf5") as file:
        assert file.demos() == ["demo_0"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"obs": {"y": np.ones((3, 2))}}, "'obs/x' is missing"),
        ({"obs": {"x": np.ones((3, 2)), "y": np.ones((3, 2))}}, "'obs/y' is new"),
        ({"obs": {"x": np.ones((3, 5))}}, "has shape (5,), but (2,) in demo 'demo_0'"),
    ],
)
def test_episodes_have_the_same_arrays(tmp_path, changes, words):
    with DatasetWriter(tmp_path / "a.hdf5", META) as writer:
        writer.append_episode(episode(3))
        with pytest.raises(DatasetError, match="demo_1") as error:
            writer.append_episode(episode(3, **changes))
    assert words in str(error.value)


def test_names_are_given_once_and_have_no_slash(tmp_path):
    with DatasetWriter(tmp_path / "a.hdf5", META) as writer:
        writer.append_episode(episode(), name="a")
        for name, words in (("a", "already"), ("b/c", "no '/'"), ("", "at least one letter")):
            with pytest.raises(DatasetError, match=words):
                writer.append_episode(episode(), name=name)
        with pytest.raises(DatasetError, match="no demo 'aa'; did you mean 'a'"):
            writer.add_filter_key("train", ["aa"])


def test_without_an_episode_nothing_is_left(tmp_path):
    with pytest.raises(DatasetError, match="no episode was written"):
        DatasetWriter(tmp_path / "a.hdf5", META).close()
    with pytest.raises(KeyboardInterrupt), DatasetWriter(tmp_path / "b.hdf5", META):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_stays_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "a.hdf5"
    with DatasetWriter(path, META) as writer:
        writer.append_episode(episode(3))
    before = path.read_bytes()
    with pytest.raises(DatasetError, match="exists already"):
        DatasetWriter(path, META)
    with (
        pytest.raises(ValueError, match="stop"),
        DatasetWriter(path, META, overwrite=True) as writer,
    ):
        writer.append_episode(episode(5))
        assert path.read_bytes() == before
        raise ValueError("stop")
    assert path.read_bytes() == before
    with DatasetWriter(path, META, overwrite=True) as writer:
        writer.append_episode(episode(5))
    with DatasetFile(path) as file:
        assert file.length("demo_0") == 5


def test_an_interrupted_recording_is_not_lost(tmp_path):
    path = tmp_path / "a.hdf5"
    with pytest.raises(KeyboardInterrupt), DatasetWriter(path, META) as writer:
        writer.append_episode(episode(3))
        writer.start_episode()
        raise KeyboardInterrupt
    assert not path.exists()
    with DatasetFile(writer.partial) as file:
        assert file.demos() == ["demo_0"]
    with pytest.raises(DatasetError, match="finish_partial"):
        DatasetWriter(path, META)
    assert finish_partial(path) == 1
    with DatasetFile(path) as file:
        assert file.length("demo_0") == 3
    assert [p.name for p in tmp_path.iterdir()] == ["a.hdf5"]


def test_two_writers_do_not_share_a_file(tmp_path):
    with DatasetWriter(tmp_path / "a.hdf5", META) as writer:
        writer.append_episode(episode())
        with pytest.raises(DatasetError, match="another process is writing"):
            DatasetWriter(tmp_path / "a.hdf5", META, overwrite=True)
        with pytest.raises(DatasetError, match="another process is writing"):
            finish_partial(tmp_path / "a.hdf5")
        with DatasetFile(writer.partial) as file:
            assert file.demos() == ["demo_0"]


def test_a_closed_writer_says_so(tmp_path):
    with DatasetWriter(tmp_path / "a.hdf5", META) as writer:
        writer.append_episode(episode())
    with pytest.raises(DatasetError, match="the writer is closed"):
        writer.append_episode(episode())
    with pytest.raises(DatasetError, match="start_episode"):
        writer.append(obs={}, action=[0.0])
    with pytest.raises(DatasetError, match="without a step"):
        writer.finish_episode()


ENDLESS = textwrap.dedent(
    """
    import sys
    import numpy as np
    from imitate.data import DatasetWriter, Episode

    with DatasetWriter(sys.argv[1], {"env_name": "Lift", "type": 1, "env_kwargs": {}}) as writer:
        for number in range(int(sys.argv[2])):
            writer.append_episode(
                Episode(
                    obs={f"k{k}": np.full((20, 30), number, dtype=np.float64) for k in range(6)},
                    actions=np.zeros((20, 7)), rewards=np.zeros(20), terminals=np.zeros(20), timeouts=np.zeros(20),
                    attrs={"model_file": "x" * 100_000},
                )
            )
            print(number + 1, flush=True)
    """
)


@pytest.mark.parametrize("milliseconds", [0, 3, 7, 12, 20, 31, 45, 60])
def test_kill_9_loses_the_running_episode_at_most(tmp_path, milliseconds):
    path = tmp_path / "a.hdf5"
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(path), "1000000"], stdout=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    time.sleep(milliseconds / 1000)
    os.kill(process.pid, signal.SIGKILL)
    reported = [1, *map(int, process.stdout.read().split())][-1]
    process.wait()
    process.stdout.close()
    assert not path.exists()
    count = finish_partial(path)
    assert reported <= count <= reported + 1
    with DatasetFile(path) as file:
        assert file.file_attrs["total"] == 20 * count
        for number, demo in enumerate(file.demos()):
            assert file.length(demo) == 20
            assert np.all(file.read(demo, "obs/k5") == number)


def test_a_full_disk_loses_the_running_episode_only(tmp_path):
    path = tmp_path / "a.hdf5"
    limit = 1_000_000  # a file that may not grow beyond stands for a full disk

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run(
        [sys.executable, "-c", ENDLESS, str(path), "1000"],
        capture_output=True,
        text=True,
        preexec_fn=limited,
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    reported = int(done.stdout.split()[-1])
    assert reported >= 3
    assert f"{path}: cannot be written (File too large)" in last
    assert f"the {reported} episodes before are safe in {path}.partial: make room" in last
    assert not path.exists()
    assert finish_partial(path) == reported
    with DatasetFile(path) as file:
        assert np.all(file.read(f"demo_{reported - 1}", "obs/k5") == reported - 1)


def test_a_disk_that_is_full_from_the_start_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with DatasetWriter(tmp_path / "ok.hdf5", META) as writer:
        writer.append_episode(episode())
    writer = DatasetWriter(tmp_path / "a.hdf5", META)
    monkeypatch.setattr("imitate.data.file.journal._write_all", full)
    with pytest.raises(DatasetError, match="No space left on device"):
        writer.append_episode(episode())
    assert [p.name for p in tmp_path.iterdir()] == ["ok.hdf5"]


def test_a_file_is_gone_on_with(tmp_path):
    path = tmp_path / "a.hdf5"
    image = {"obs": {"image": np.zeros((3, 8, 8, 3), dtype=np.uint8)}}
    for number in range(2):
        with DatasetWriter(path, META, append=True, image_storage="jpeg") as writer:
            assert writer.num_episodes == number
            with pytest.raises(DatasetError, match="'obs/image'"):
                if number:
                    writer.append_episode(episode())
                else:
                    raise DatasetError("'obs/image'")
            assert writer.append_episode(episode(**image)) == f"demo_{number}"
            assert not path.exists()
    with DatasetFile(path) as file:
        assert file.demos() == ["demo_0", "demo_1"]
        assert file.file_attrs["total"] == 6
        assert file.env_meta == META


def test_what_an_interrupted_writer_left_is_gone_on_with(tmp_path):
    path = tmp_path / "a.hdf5"
    with DatasetWriter(path, META, append=True) as writer:
        writer.append_episode(episode(2))
    with pytest.raises(KeyboardInterrupt), DatasetWriter(path, META, append=True) as writer:
        writer.append_episode(episode(3))
        writer.start_episode()
        raise KeyboardInterrupt
    assert not path.exists()
    with DatasetWriter(path, META, append=True) as writer:
        assert writer.num_episodes == 2
        writer.append_episode(episode(4))
    with DatasetFile(path) as file:
        assert [file.length(demo) for demo in file.demos()] == [2, 3, 4]


def test_a_killed_writer_is_gone_on_with(tmp_path):
    path = tmp_path / "a.hdf5"
    program = """
        import os, signal, sys
        import numpy as np
        from imitate.data import DatasetWriter, Episode
        x = np.zeros((2, 1))
        one = Episode({"x": x}, x, x[:, 0], x[:, 0], x[:, 0])
        with DatasetWriter(sys.argv[1], {}, append=True) as writer:
            writer.append_episode(one)
        writer = DatasetWriter(sys.argv[1], {}, append=True)
        writer.append_episode(one)
        writer._file.create_group("data/half")
        writer._file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), path], check=False)
    with DatasetWriter(path, {}, append=True) as writer:
        assert writer.num_episodes == 2
    with DatasetFile(path) as file:
        assert file.demos() == ["demo_0", "demo_1"]


def test_a_file_is_gone_on_with_at_its_rate_only(tmp_path):
    path = tmp_path / "a.hdf5"
    with DatasetWriter(path, META, control_freq=10) as writer:
        writer.append_episode(episode())
    before = path.read_bytes()
    with pytest.raises(DatasetError, match=r"recorded at 10 Hz, and control_freq is 20"):
        DatasetWriter(path, META, control_freq=20, append=True)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.hdf5"]
    for rate in (10, None):
        with DatasetWriter(path, META, control_freq=rate, append=True) as writer:
            writer.append_episode(episode())
    with DatasetFile(path) as file:
        assert (len(file.demos()), file.control_freq) == (3, 10.0)


def test_what_a_killed_writer_left_is_gone_on_with_at_its_rate_only(tmp_path):
    path = tmp_path / "a.hdf5"
    with pytest.raises(KeyboardInterrupt), DatasetWriter(path, META, control_freq=10) as writer:
        writer.append_episode(episode())
        raise KeyboardInterrupt
    with pytest.raises(DatasetError, match="recorded at 10 Hz"):
        DatasetWriter(path, META, control_freq=20, append=True)
    assert finish_partial(path) == 1


@pytest.mark.parametrize("rate", [0, -1, np.nan, np.inf, "fast"])
def test_a_rate_is_a_positive_number(tmp_path, rate):
    with pytest.raises(ConfigError, match="control_freq is .*expected the number of actions"):
        DatasetWriter(tmp_path / "a.hdf5", META, control_freq=rate)
    assert not list(tmp_path.iterdir())


def test_an_episode_that_runs_at_the_end_is_told_of(tmp_path, caplog):
    with DatasetWriter(tmp_path / "a.hdf5", META) as writer:
        writer.start_episode()
        writer.append(**step())
        writer.finish_episode()
        writer.start_episode()
        writer.append(**step())
    assert "the running episode of 1 step was neither finished nor discarded" in caplog.text
    with (
        pytest.raises(DatasetError, match="no episode was written: the running episode of 1 step"),
        running(tmp_path / "b.hdf5"),
    ):
        pass


@pytest.mark.parametrize("success", ["no", 2, 0.5])
def test_success_is_true_or_false(tmp_path, success):
    with running(tmp_path / "a.hdf5") as writer:
        with pytest.raises(DatasetError, match="success is .*expected True, False"):
            writer.finish_episode(success=success)
        writer.finish_episode(success=np.bool_(True))


def test_observations_without_names_are_refused(tmp_path):
    with running(tmp_path / "a.hdf5") as writer:
        with pytest.raises(DatasetError, match="obs is a ndarray: expected a dict"):
            writer.append(obs=np.zeros(3), action=[0.1, 0.2])
        writer.finish_episode()


def running(path, **options):
    """A writer with one step of a running episode."""
    writer = DatasetWriter(path, META, **options)
    writer.start_episode()
    writer.append(**step())
    return writer


def step(obs=None, action=(0.1, 0.2), **more):
    seen = {"x": np.zeros(3), "image": np.zeros((8, 6, 3), np.uint8)}
    return {"obs": {**seen, **(obs or {})}, "action": action, **more}


WRONG_STEPS = [
    (step(action=[0.1]), ["'actions'", "(1,)", "(2,)"]),
    (step(action=[np.nan, 0.0]), ["'actions'", "nan"]),
    (step(action=["a", "b"]), ["'actions'", "not an array of numbers"]),
    (step({"x": np.zeros(4)}), ["'obs/x'", "(4,)", "(3,)"]),
    (step({"x": [0.0, np.inf, 0.0]}), ["'obs/x'", "inf"]),
    (step({"x": [[1.0], [1.0, 2.0]]}), ["'obs/x'", "not an array of numbers"]),
    (step({"x": None}), ["'obs/x'", "not an array of numbers"]),
    (step({"image": np.zeros((8, 6, 3))}), ["'obs/image'", "float64", "uint8"]),
    (step({"image": np.zeros((3, 8, 6), np.uint8)}), ["'obs/image'", "(3, 8, 6)", "(8, 6, 3)"]),
    (step({"y": np.zeros(3)}), ["'obs/y'", "new", "obs/x"]),
    ({**step(), "obs": {"x": np.zeros(3)}}, ["'obs/image'", "missing"]),
    (step(interventions=True), ["'interventions'", "new"]),
    (step(reward=[1.0, 2.0]), ["'rewards'", "(2,)", "one number"]),
    (step(reward=np.nan), ["'rewards'", "nan"]),
    (step(next_obs={"x": np.zeros(3)}), ["next_obs", "append_episode"]),
]


@pytest.mark.parametrize(("wrong", "words"), WRONG_STEPS)
def test_a_wrong_step_is_told_when_it_is_given(tmp_path, wrong, words):
    with running(tmp_path / "a.hdf5") as writer:
        with pytest.raises(DatasetError) as error:
            writer.append(**wrong)
        assert all(word in str(error.value) for word in [*words, "step 1", "a.hdf5"])
        writer.append(**step())
        writer.finish_episode()
        writer.start_episode()
        with pytest.raises(DatasetError) as error:
            writer.append(**wrong)
        assert all(word in str(error.value) for word in [*words, "step 0"])
        writer.discard_episode()
    with DatasetFile(tmp_path / "a.hdf5") as file:
        assert file.length("demo_0") == 2, "the wrong step was not taken"


WRONG_FIRST_STEPS = [
    (step({"image": np.zeros((8, 6, 3), np.float32)}), ["float32", "uint8"]),
    (step({"image": np.full((8, 6, 3), 200.0)}), ["float64", "uint8"]),
    (step({"image": np.zeros((3, 96, 96), np.uint8)}), ["(3, 96, 96)", "(H, W, C)"]),
    (step({"arm/pos": np.zeros(3)}), ["'obs/arm/pos'", "no '/'"]),
    (step(**{"a/b": 1.0}), ["'a/b'", "no '/'"]),
    (step(action=0.5), ["'actions'", "()", "(A,)"]),
    (step(action=[[0.5, 0.5]]), ["'actions'", "(1, 2)", "(A,)"]),
    (step(action=[]), ["'actions'", "(0,)", "(A,)"]),
]


@pytest.mark.parametrize(("wrong", "words"), WRONG_FIRST_STEPS)
def test_a_wrong_first_step_is_told(tmp_path, wrong, words):
    writer = DatasetWriter(tmp_path / "a.hdf5", META)
    writer.start_episode()
    with pytest.raises(DatasetError) as error:
        writer.append(**wrong)
    assert all(word in str(error.value) for word in [*words, "step 0"])


def test_what_was_discarded_binds_nobody(tmp_path):
    with running(tmp_path / "a.hdf5") as writer:
        writer.discard_episode()
        writer.start_episode()
        writer.append(obs={"x": np.zeros(5)}, action=[1.0, 2.0, 3.0])
        writer.finish_episode()


def test_types_that_mean_the_same_may_differ(tmp_path):
    with DatasetWriter(tmp_path / "a.hdf5", META) as writer:
        writer.start_episode()
        writer.append(obs={"x": [0, 0]}, action=[0, 1], reward=0)
        writer.append(
            obs={"x": np.float32([0.5, 0])}, action=[0.5, 1], reward=np.float64(1), terminal=1
        )
        writer.finish_episode()
    with DatasetFile(tmp_path / "a.hdf5") as file:
        assert file.read("demo_0", "obs/x").tolist() == [[0, 0], [0.5, 0]]


def test_depth_and_what_is_no_picture_may_be_floats(tmp_path):
    seen = {"wrist_depth": np.zeros((8, 6, 1), np.float32), "touch": np.zeros((8, 6, 3))}
    with DatasetWriter(tmp_path / "a.hdf5", META, strict=False) as writer:
        writer.start_episode()
        writer.append(obs=seen, action=[0.0])
        writer.finish_episode()
    del seen["touch"]
    with DatasetWriter(tmp_path / "b.hdf5", META) as writer:
        writer.start_episode()
        writer.append(obs=seen, action=[0.0])
        writer.finish_episode()


def test_an_episode_is_begun_once(tmp_path):
    with running(tmp_path / "a.hdf5") as writer:
        with pytest.raises(DatasetError, match="episode of 1 step is running.*discard_episode"):
            writer.start_episode()
        writer.finish_episode()
        writer.start_episode()
        writer.discard_episode()
    with DatasetFile(tmp_path / "a.hdf5") as file:
        assert file.demos() == ["demo_0"]


@pytest.mark.parametrize("name", ["sucess", "succes", "Success", "languages", "task_ids"])
def test_a_misspelt_attribute_is_told(tmp_path, name):
    with running(tmp_path / "a.hdf5") as writer:
        with pytest.raises(DatasetError, match=f"{name}=.*did you mean.*attrs=") as error:
            writer.finish_episode(**{name: True})
        assert "a.hdf5" in str(error.value)
        writer.finish_episode(operator="ada", attrs={name: True})
    with DatasetFile(tmp_path / "a.hdf5") as file:
        attrs = file.attrs("demo_0")
        assert attrs["operator"] == "ada"
        assert attrs[name]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"obs": {"x": np.zeros((3, 8, 6, 3))}}, ["'obs/x'", "float64", "uint8"]),
        ({"obs": {"x": np.zeros((3, 3, 8, 6), np.uint8)}}, ["'obs/x'", "(H, W, C)"]),
        ({"obs": {"a/b": np.zeros((3, 2))}}, ["'obs/a/b'", "no '/'"]),
        ({"next_obs": {"y": np.zeros((3, 2))}}, ["'next_obs/y'", "'obs/y' there is none"]),
        ({"next_obs": {"x": np.zeros((3, 5))}}, ["'next_obs/x'", "(3, 5)", "(3, 2)"]),
        (
            {
                "obs": {"x": np.zeros((3, 2)), "y": np.zeros((3, 2))},
                "next_obs": {"x": np.zeros((3, 2))},
            },
            ["'next_obs/y' is missing"],
        ),
    ],
)
def test_whole_episodes_are_checked_alike(tmp_path, changes, words):
    with DatasetWriter(tmp_path / "a.hdf5", META) as writer:
        with pytest.raises(DatasetError) as error:
            writer.append_episode(episode(3, **changes))
        assert all(word in str(error.value) for word in words)
        writer.append_episode(episode(3))


def test_a_later_episode_of_another_type_is_refused(tmp_path):
    images = np.zeros((3, 8, 6, 3), np.uint8)
    with DatasetWriter(tmp_path / "a.hdf5", META) as writer:
        writer.append_episode(episode(3, obs={"image": images}))
        with pytest.raises(
            DatasetError, match="'obs/image' is float64, but uint8 in demo 'demo_0'"
        ):
            writer.append_episode(episode(3, obs={"image": images / 255.0}))


def test_steps_are_not_appended_to_demos_with_next_obs(tmp_path):
    path = tmp_path / "a.hdf5"
    with DatasetWriter(path, META) as writer:
        writer.append_episode(episode(3, next_obs={"x": np.zeros((3, 2))}))
    with (
        DatasetWriter(path, META, append=True) as writer,
        pytest.raises(DatasetError, match=r"next_obs.*append_episode"),
    ):
        writer.start_episode()


def test_what_lies_under_another_name_is_named(tmp_path):
    path = tmp_path / "a b.hdf5"
    with pytest.raises(KeyboardInterrupt), DatasetWriter(path, META) as writer:
        writer.append_episode(episode())
        with pytest.raises(DatasetError, match="is being recorded.*a b.hdf5.partial"):
            DatasetFile(path)
        raise KeyboardInterrupt
    with pytest.raises(DatasetError, match="imitate dataset finish .*a b.hdf5'"):
        DatasetFile(path)
    done = CliRunner().invoke(app, ["info", str(path)])
    assert done.exit_code == 2
    assert "a b.hdf5.partial" in done.stderr and "imitate dataset finish" in done.stderr
    assert CliRunner().invoke(app, ["dataset", "finish", str(path)]).output.endswith("1 episode\n")
    for name in (path, writer.partial):
        done = CliRunner().invoke(app, ["dataset", "finish", str(name)])
        assert done.exit_code == 2 and "is finished already" in done.stderr
