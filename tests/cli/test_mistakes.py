"""Mistakes of a user are answered by one line and exit code 2, by every command; no file appears or changes."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from imitate.cli.main import VERBS
from tests.calling import call
from tests.demo_files import make_demo_file
from tests.deploy.bundle.bundles import small_bundle
from tests.deploy.comparison_world import constant_checkpoint
from tests.tiny import tiny_checkpoint, tiny_tree

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "data" / "formats" / "fixtures"
ROBOT = {"env_name": "my_arm", "type": 4, "env_kwargs": {}}

MISTAKES = """
check-algo sac/sac_pendulun | sac_pendulum
check-algo sac/sac_pendulum --set algo.discuont=0.5 | discount
check-algo bc/bc --dataset nowhere.hdf5 | nowhere.hdf5
check-algo config.json --set 'observation.modalities.obs.low_dim=["object","poss"]' | poss
check-deploy none.pth demos.hdf5 | none.pth: there is no such checkpoint
check-deploy policy.pth none.hdf5 | none.hdf5
check-deploy policy.pth demos.hdf5 --filter-key best | there is no filter key 'best'
check-deploy policy.pth demos.hdf5 --training none.hdf5 | none.hdf5
check-deploy ws://127.0.0.1:9 demos.hdf5 | was not reached
check-env text.json | text.json
check-env list.json | list.json
collect --env Lft --out new.hdf5 | no scripted expert for 'Lft'; did you mean 'Lift'?
collect --env Lift --out new.hdf5 --human-like --quality mixed | leave one of the two out
collect --env metaworld:push-v3 --out new.hdf5 --env-kwargs {camera | --env-kwargs: {camera is not JSON
collect --env metaworld:push-v3 --out new.hdf5 --env-kwargs [1] | --env-kwargs: [1]: expected a JSON object
collect --env metaworld:push-v3 --out new.hdf5 --human-like | --human-like works only in robosuite's tasks
collect --env metaworld:push-v3 --out new.hdf5 --quality mixed | --quality mixed works only in robosuite's tasks
collect --env Lift --out new.hdf5 --teleop keyboard --workers 2 | --workers is for scripted experts
collect --env Lift --out new.hdf5 --append | need --teleop
compare good.pth | give two policies and --robot
eval --agent runs/none | runs/none: there is no such checkpoint
train --algo iql --dataset demos.hdf5 | write --config iql/iql
train --algo bc_rnn --dataset demos.hdf5 | write --config bc/bc_rnn
compare good.pth bad.pth | give two policies and --robot
compare good.pth bad.pth --robot COIN --judge person | needs a terminal
compare good.pth bad.pth --robot COIN --robot-arg tells=false --judge robot | does not measure success
compare --report --out none.jsonl | there is no such comparison
compare good.pth none.pth --robot COIN | none.pth: there is no such checkpoint
compare good.pth bad.pth --robot COIN --rate-hz 10 | the rate is 10 Hz
compare b.zip b.zip --robot sim --async --join rtcc | --join rtcc: expected replace, blend, fade, rtc, rtc-vjp or prefix
config check good.pth | good.pth
config init none.hdf5 --out new.json | none.hdf5
config list nothing_like_it | nothing_like_it
config schema --out text.txt | choose another --out
config show robosuite/lift/bc --set train.batchsize=3 | did you mean 'batch_size'?
convert-checkpoint none.pth new.pth --to imitate | none.pth
eval --agent random | module:function need exactly one environment: name it with --env
eval --agent random --env Pendulum-v1 --rename a=b | error: random: rename a=b: the policy has no observation 'b'
dataset info 'my demos.hdf5' | there is no command 'dataset info'; write `imitate info 'my demos.hdf5'`
run good.pth --robot COIN --robot-option tells=false | did you mean --robot-arg?
run good.pth --robot COIN --robot-opt tells=false | did you mean --robot-arg?
convert-checkpoint policy.pth new.pth --acting-only | --acting-only writes imitate's own format: add --to imitate
dagger --config bc/bc --out new --env Pendulum-v1 --expert nowhere.pth | 'nowhere.pth' is neither a file nor
dagger --config bc/bc --out new --env Pendulum-v1 --expert numpy:nobody | 'numpy:nobody' is neither a file nor
dagger --config bc/bc --out new --env Pendulum-v1 --expert no_such_module:hand | 'no_such_module:hand' is neither
dagger --config bc/bc --out new --env Pendulum-v1 --expert : | --expert: ':' is neither a file nor module:function
dagger --config bc/bc --out new --label-every 2 --take-over expert | --label-every: with --take-over
dagger --config bc/bc --out new | --env: no environment is given
dagger --config bc/bc --out new --dataset real.hdf5 --expert math:sqrt | is 4, a real robot
diagnose none.pth | none.pth
diagnose policy.pth | name them by --dataset, or record episodes by `imitate collect --agent policy.pth --out
diagnose policy.pth --dataset demos.hdf5 --recording none.hdf5 | none.hdf5
dataset actions real.hdf5 --to absolute | no output file
dataset actions real.hdf5 --out new.hdf5 | no conversion is requested
dataset actions real.hdf5 --out new.hdf5 --to absolute | robot0_eef_pos
dataset actions real.hdf5 --out new.hdf5 --to absolute --pose-keys hand_pos | two values
dataset actions real.hdf5 --out new.hdf5 --to absolute --scale 0,1 | two numbers above 0
dataset convert nothing.npz new.hdf5 | nothing.npz: there is no such file
dataset convert text.txt new.hdf5 | looks like none of the formats
dataset convert cut.hdf5 new.hdf5 | cut.hdf5
dataset convert p.npz new.hdf5 --from d4l | there is no dataset format 'd4l'; did you mean 'd4rl'
dataset convert p.npz new.hdf5 --from d4rl | p.npz: is not an HDF5 file
dataset convert p.npz new.hdf5 --to imitation | is only read
dataset convert p.npz new.strange | name one with --to
dataset convert p.npz text.txt --to robomimic | exists already
dataset convert p.npz p.npz | p.npz: is the source itself
dataset convert p.npz p.npz --to robomimic --overwrite | is the source itself
dataset convert p.npz new.hdf5 --action-shift 1 | does not use --action-shift
dataset delete demos.hdf5 -o new.hdf5 | name demos or keys
dataset delete demos.hdf5 --keys obs/objekt -o new.hdf5 | did you mean 'obs/object'?
dataset delete demos.hdf5 --keys actions -o new.hdf5 | cannot be deleted
dataset delete demos.hdf5 --demos demo_0,demo_1,demo_2,demo_3 -o new.hdf5 | no demo would be left
dataset doctor demos.hdf5 --fix | no output file
dataset doctor demos.hdf5 --fix --out new.hdf5 --in-place | no output file
dataset doctor demos.hdf5 --out new.hdf5 | need --fix
dataset doctor demos.hdf5 --fix --only nam --out new.hdf5 | no finding 'nam'
dataset doctor bad.hdf5 --fix --out bad.hdf5 --overwrite | --in-place
dataset doctor demos.hdf5 --fix --out new.hdf5 | nothing to repair
dataset doctor text.txt | text.txt
dataset doctor none.hdf5 | none.hdf5
dataset download nobody/nothing_of_that_kind --out new | nobody/nothing_of_that_kind
dataset embed mute.hdf5 --out new.npz | some demos have neither the attribute 'language' nor 'task_id'
dataset filter demos.hdf5 a/b -o new.hdf5 | not contain '/'
dataset filter demos.hdf5 none --min-length 99 -o new.hdf5 | no demo fulfils
dataset finish demos.hdf5 | demos.hdf5
dataset index none | none
dataset merge demos.hdf5 -o new.hdf5 | a merge needs at least two files
dataset migrate-env demos.hdf5 | --out
dataset playback none.hdf5 --video new.mp4 | none.hdf5
dataset render demos.hdf5 --out new.hdf5 --demos demo_7 | there is no demo 'demo_7'
dataset render demos.hdf5 --out demos.hdf5 --overwrite | demos.hdf5
dataset render demos.hdf5 --out new.hdf5 --cameras front --size frnt=12 | 'frnt' is not among --cameras; did you mean
dataset render demos.hdf5 --out new.hdf5 --cameras front --size 84x | HEIGHTxWIDTH
dataset render demos.hdf5 --out new.hdf5 --cameras front --size x84 | HEIGHTxWIDTH
dataset render demos.hdf5 --out new.hdf5 --cameras front --size big | HEIGHTxWIDTH
dataset render demos.hdf5 --out new.hdf5 --cameras front --size 0 | HEIGHTxWIDTH
dataset render demos.hdf5 --out new.hdf5 --cameras front --size front=0 | HEIGHTxWIDTH
dataset rename-key demos.hdf5 obs seen -o new.hdf5 | is a group
dataset rename-key demos.hdf5 obs/object obs//x -o new.hdf5 | not the name of an array
dataset rename-key demos.hdf5 actions moves -o new.hdf5 | would be missing
dataset rename-key demos.hdf5 obs/object obs/robot0_eef_pos -o new.hdf5 | obs/robot0_eef_pos
dataset set-env demos.hdf5 --env a:B-v0 | --in-place
dataset set-env demos.hdf5 --env a:B-v0 --kwargs [1] --in-place | expected a JSON object
dataset set-env demos.hdf5 --env a:B-v0 --kwargs { --in-place | is not JSON
dataset set-env demos.hdf5 --env gone.json --in-place | cannot be read as JSON
dataset set-env demos.hdf5 --env typeless.json --in-place | need 'type'
dataset shard none.hdf5 --out new | none.hdf5
dataset split demos.hdf5 | --in-place
dataset split demos.hdf5 -o demos.hdf5 | --in-place
dataset split demos.hdf5 -o new.hdf5 --ratio 1.5 | between 0 and 1
dataset split demos.hdf5 -o new.hdf5 --filter-key mime | did you mean 'mine'?
dataset split empty | name a new file with --out
dataset stats demos.hdf5 --keys obs/objekt | did you mean 'object'?
dataset stats none.hdf5 | no such file
dataset stats demos.hdf | demos.hdf: there is no such file; did you mean 'demos.hdf5'?
dataset subset demos.hdf5 --demos demo_9 -o new.hdf5 | no demo 'demo_9'
dataset subset demos.hdf5 --demos demo_1-demo_9 -o new.hdf5 | no demo 'demo_9'
dataset playback demos.hdf5 --demos 2 --video new.mp4 | --first 2 takes the first 2
dataset subset demos.hdf5 --min-length 99 -o new.hdf5 | no demo fulfils
dataset subset none.hdf5 -o new.hdf5 | no such file
eval --agent none.pth | none.pth
eval --agent policy.pth --resume | --table
eval --agent real.pth | `imitate check-deploy CHECKPOINT DEMOS.hdf5` compares a policy with recorded actions
eval --agent policy.pth --overlay | name the file with --video FILE.mp4
eval --agent policy.pth --env no_world:Reach-v0 --workers 2 | cannot be imported (No module named 'no_world')
eval --agent policy.pth --env Pendulun-v1 | environment 'Pendulun-v1' (Environment `Pendulun` doesn't exist.); did
eval --agent policy.pth --env imitate.envs.worlds.tasks:Recal-v0 | 'imitate.envs.worlds.tasks:Recall-v0'?
eval --agent policy.pth --on moon | --on moon: unknown value; give local, ray or ray:HOST:PORT
eval --agent policy.pth --fqe --on ray | --on is for the workers of episodes
eval --agent policy.pth --fqe --latency-ms 50 | --fqe plays none
eval --agent policy.pth --uncertainty o.hdf5 --video v.mp4 | --uncertainty plays none
eval --agent policy.pth --uncertainty o.hdf5 --discount 0.9 | --discount needs --fqe
eval --agent policy.pth --rename angle=flt | did you mean 'flat'
eval --agent b.zip | all else needs the checkpoint that it was made from
export b.zip | b.zip: is a bundle of `imitate export`
export policy.pth -o b.zip | b.zip: exists already; add --overwrite
export policy.pth -o ./policy.pth --overwrite | is the checkpoint itself
export policy.pth --to tensorrt | --to tensorrt: expected onnx
info empti/x.hdf5 | empti/x.hdf5: there is no such file or folder
info broken_rum/config.json | did you mean 'broken_run/config.json'?
info absent | absent: there is no such file or folder
info text.txt | neither a demonstration file nor a checkpoint
info broken.pth | not a checkpoint
info damaged.hdf5 | cut short or damaged
info empty | neither a run nor a dataset
info many | many: has runs of several names; give one of them: many/a, many/b
info broken_run | config.json
info odd_run | train in config.json or results.json
info odd_results | best.epoch in config.json or results.json
info foreign | config.json has no algo_name, so this is not a run folder
record demos.hdf5 --teleop keyboard --robot nobody.py:Arm | choose another name, or add --append
record new.hdf5 --robot sim --env Pendulum-v1 --teleop expert:Lift --teleop-arg mood=1 | the teleoperator 'expert:Lift'
record new.hdf5 --robot sim --teleop keyboard | no environment given
record new.hdf5 --robot OWN --steps 3 --teleop PUSHING --rate-hz 30 | the rate is 30 Hz, but the robot needs
replay swing.hdf5 --robot sim --demo demo_9 | no demo 'demo_9'
replay swing.hdf5 --robot sim --rate-hz 20 | the rate is 20 Hz
run b.zip --robot sim --env Pendulum-v1 --async --join rtc | --join rtc: a bundle does not support real-time chunking
run b.zip --robot sim --env Pendulum-v1 --device cuda | bundles run on the CPU
run good.pth --robot OWN | takes actions of 2 numbers, but the policy returns
run good.pth --robot nobody.py:Arm | nobody.py: no such file
run policy.pth --robot nobody.py:Arm --rate-hz 10 --record demos.hdf5 | demos.hdf5: exists already: choose another name
run policy.pth --robot sim | give it with --rate-hz
run policy.pth --robot sim --rate-hz 10 --dry-run --record new.hdf5 | --record writes the actions that are sent
run policy.pth --robot sim --rate-hz 10 --async --join prefix | not trained for planned actions
run policy.pth --robot sim --rate-hz 10 --async --join rtcc | expected replace, blend, fade, rtc, rtc-vjp or prefix
run policy.pth --robot sim --rate-hz 10 --limits none.json | --limits none.json: there is no such file
run policy.pth --robot sim --rate-hz 10 --limits wide.json | looser than the robot's own limits: high [9.]
run policy.pth --robot sim --rate-hz 10 --rename angle=flat | 'angle'
run policy.pth --robot sim --rate-hz 10 --robot-arg colour=red | 'sim' cannot be made
run policy.pth --robot sim --rate-hz 10 --robot-arg x | expected key=value
run policy.pth --robot sim --rate-hz 10 --slow 0.1 | slow motion by 0.1 changes nothing
run policy.pth --robot sim --rate-hz 10 --take-over mouse | no teleoperator 'mouse'
run policy.pth --robot simm --rate-hz 10 | in the group imitate.robots); did you mean 'sim'?
run policy.pth --robot panda --rate-hz 10 | there is no robot 'panda'
run none.pth --robot sim | none.pth: there is no such checkpoint
run ws://127.0.0.1:9 --robot sim | was not reached
run http://127.0.0.1:9 --robot sim | begins with ws:// or wss://
serve policy.pth --host 0.0.0.0 | --token-file
serve policy.pth --tls-key key.pem | --tls-key needs --tls-cert
serve policy.pth --token-file none.txt | --token-file none.txt: there is no such file
sweep none.json | none.json
plot nowhere -o new.png | nowhere: there is no such run
train | imitate config init DEMOS.hdf5 --out my.json
train --config none.json | none.json: there is no such file
train somewhere | somewhere: to resume a run, write --resume somewhere; demonstrations take --dataset
train --resume somewhere | somewhere: there is no such run
train --resume empty | empty: not a run folder (no config.json in it), and none is below it
train --resume odd_rum | there is no such run; did you mean 'odd_run'?
train --init polcy.pth --dataset demos.hdf5 | polcy.pth: there is no such checkpoint; did you mean 'policy.pth'?
train --config config.json --dataset demo.hdf | no such demonstration file; did you mean 'demos.hdf5'?
eval --agent policy.pt | policy.pt: there is no such checkpoint; did you mean 'policy.pth'?
train --resume | --resume without a run folder needs --config
train --config config.json --dataset none.hdf5 | none.hdf5: there is no such demonstration file
train --config config.json --set train.batchsize=3 | did you mean 'batch_size'
train --config config.json --device tpu | train.device
trian | there is no command 'trian'; did you mean 'train'?
report demos.hdf5 | there is no command 'report'; it is 'imitate dataset report'
playback demos.hdf5 | it is 'imitate dataset playback'
"""
"""(command line | part of the answer); COIN, OWN and PUSHING are robots and a device of this repository."""
NAMES = {
    "COIN": "tests.deploy.comparison_world:Coin",
    "OWN": f"'{ROOT / 'examples' / 'own_robot.py'}:PointArm'",
    "PUSHING": "tests.deploy.fake_robot:Pushing --teleop-arg action=[0.1,0.1]",
}
ROWS = [tuple(row.split(" | ")) for row in MISTAKES.strip().splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Policies, recordings, a bundle, configurations, and what only looks like one of them."""
    folder = tmp_path_factory.mktemp("mistakes")
    pendulum = {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}
    bounds = {"action_low": [-2.0], "action_high": [2.0]}
    tiny_checkpoint(folder / "policy.pth", obs={"flat": 3}, env=pendulum, shapes=bounds)
    tiny_checkpoint(folder / "real.pth", obs={"flat": 3}, env=ROBOT)
    constant_checkpoint(folder / "good.pth", 0.8, control_freq=20.0)
    constant_checkpoint(folder / "bad.pth", -0.6, control_freq=20.0)
    small_bundle(folder / "b.zip")
    make_demo_file(folder / "demos.hdf5", length=[5, 10, 15, 20], filter_keys={"mine": [1, 3]})
    make_demo_file(folder / "mute.hdf5", num_demos=1)
    make_demo_file(folder / "bad.hdf5", num_demos=1)
    make_demo_file(folder / "real.hdf5", obs_dims={"hand_pos": 3, "hand_quat": 4}, env_meta=ROBOT)
    make_demo_file(folder / "swing.hdf5", obs_dims={"flat": 3}, action_dim=1, env_meta=pendulum)
    with h5py.File(folder / "swing.hdf5", "a") as file:
        file["data"].attrs["control_freq"] = 50
    with h5py.File(folder / "bad.hdf5", "a") as file:
        file["data/demo_0/actions"][0] = np.nan
    shutil.copy(FIXTURES / "pendulum.npz", folder / "p.npz")
    (folder / "cut.hdf5").write_bytes((FIXTURES / "walker2d.hdf5").read_bytes()[:3000])
    (folder / "damaged.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(20))
    (folder / "broken.pth").write_bytes(bytes(100))
    tree = tiny_tree(obs={"object": 10}, data="demos.hdf5")
    texts = {"text.txt": "hello", "text.json": "{", "list.json": "[]", "wide.json": '{"high": 9.0}'}
    texts |= {"typeless.json": '{"env_name": "Lift"}', "config.json": json.dumps(tree)}
    texts |= {"broken_run/config.json": "{", "foreign/config.json": '{"model_type": "bert"}'}
    texts |= {"odd_run/config.json": '{"algo_name": "bc", "train": []}'}
    texts |= {f"many/{name}/2026/config.json": "{}" for name in "ab"}
    texts |= {
        "odd_results/config.json": '{"algo_name": "bc"}',
        "odd_results/results.json": '{"best": {}}',
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "broken_run" / "checkpoints").mkdir()
    (folder / "broken_run" / "checkpoints" / "last.pth").touch()
    (folder / "empty").mkdir()
    return folder


def content(folder):
    return {path: path.is_file() and path.read_bytes() for path in sorted(folder.rglob("*"))}


@pytest.mark.parametrize(("line", "words"), ROWS, ids=[line for line, _ in ROWS])
def test_a_mistake_is_one_line_and_leaves_nothing(folder, monkeypatch, line, words):
    monkeypatch.chdir(folder)
    for name, value in NAMES.items():
        line = line.replace(name, value)
    before = content(folder)
    done = call(line, code=2)
    assert words in done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""
    assert content(folder) == before


def test_every_command_has_a_row():
    """But for the cluster's, whose mistakes need one."""
    assert set(VERBS) - {line.split()[0] for line, _ in ROWS} == {"cluster"}


@pytest.mark.parametrize(
    "line",
    [
        "info",
        "info --nonsense",
        *(f"collect --env Lift --out new.hdf5 {one}" for one in ("--num 0", "--workers 0")),
        *(f"collect --env Lift --out new.hdf5 {one}" for one in ("--noise -1", "--quality poor")),
        *(
            f"dataset render demos.hdf5 --out new.hdf5 {one}"
            for one in ("--storage png", "--workers 0")
        ),
        "dataset render demos.hdf5 --out new.hdf5 --jpeg-quality 0",
        "sweep config.json --stop-early hyperband",
    ],
)
def test_options_out_of_range_are_exit_code_2(folder, monkeypatch, line):
    monkeypatch.chdir(folder)
    before = content(folder)
    call(line, code=2)
    assert content(folder) == before
