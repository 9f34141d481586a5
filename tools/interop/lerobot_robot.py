"""Test of `imitate record`, `train`, `run`, `serve` and `replay` with LeRobot's own so101_follower and so101_leader.

    python tools/interop/lerobot_robot.py FOLDER LEROBOT_PYTHON

LeRobot's drivers are connected to simulated servos by a pseudo-terminal (feetech_arm.py); its camera is a plug-in
(lerobot_camera_stripes.py). The packets on the bus are checked. The program prints a line of figures for each part, and
ends with exit code 1 at any difference.
"""

import json
import os
import pty
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from imitate.data import DatasetFile

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MOTORS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
RATE_HZ, STEPS, EPISODES = 10.0, 60, 3
SPEED = 60.0  # degrees a second
TICK = 360 / 4095
UNTIL_STOPPED_S = 3.0
ATTEMPTS, TOO_LATE = 10, "cannot be connected"
ENOUGH = 0.9  # fraction of the steps; on a busy machine a lost reading makes a step hold the pose


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def check(is_so, words):
    if not is_so:
        raise SystemExit(f"FAILED: {words}")


@contextmanager
def arm(folder, name, *options):
    """Start a simulated arm, with a link to its port at ``folder/name`` and its commands at ``folder/name.jsonl``."""
    port, log = folder / name, folder / f"{name}.jsonl"
    command = [sys.executable, HERE / "feetech_arm.py", port, log, *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    while not (port.is_symlink() and log.exists()):
        check(process.poll() is None, "the simulated arm did not start")
        time.sleep(0.05)
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait(10)
        port.unlink()


class Bus:
    """Reader of the lines that an arm has written since this object was made."""

    def __init__(self, folder, name="follower"):
        self._path = folder / f"{name}.jsonl"
        self._seen = len(self._path.read_text().splitlines())

    def _lines(self, kind):
        lines = map(json.loads, self._path.read_text().splitlines()[self._seen :])
        return [(when, values) for when, what, values in lines if what == kind]

    def goals(self):
        """Return times, and goals (N, 6) in the units of LeRobot: degrees, and 0 to 100 for the gripper."""
        lines = self._lines("goal")
        ticks = np.array([[v[str(n)] for n in range(1, 7)] for _, v in lines], float).reshape(-1, 6)
        units = (ticks - 2048) * TICK
        units[:, 5] = (ticks[:, 5] - 1024) / 2048 * 100
        return np.array([when for when, _ in lines]), units

    def torque(self):
        return [next(iter(values.values())) for _, values in self._lines("torque")]


class Commands:
    """Runner of imitate's commands, by default with LeRobot's Python, else with this interpreter."""

    def __init__(self, folder, python):
        self.folder, self.python = folder, python
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def line(self, *words, own=False):
        return [sys.executable if own else self.python, "-m", "imitate", *map(str, words)]

    def __call__(self, *words, code=0, own=False):
        for _ in range(ATTEMPTS):
            done = subprocess.run(
                self.line(*words, own=own),
                env=self.env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=300,
            )
            said = done.stdout + done.stderr
            if not self.too_late(said):
                break
        check(done.returncode == code, f"{words[0]}: exit code {done.returncode}\n{said[-3000:]}")
        return done.stdout if code == 0 else said

    def start(self, goals, *words, **streams):
        """Start a command, wait until it has sent so many goals to the follower; return it and its log file."""
        for _ in range(ATTEMPTS):
            bus, log = Bus(self.folder), self.folder / "messages"
            with log.open("w") as messages:
                process = subprocess.Popen(
                    self.line(*words), env=self.env, cwd=self.folder, stderr=messages, text=True, **streams
                )  # fmt: skip
            while len(bus.goals()[0]) < goals and process.poll() is None:
                time.sleep(0.02)
            if process.poll() is None:
                return process, log
            check(self.too_late(log.read_text()), f"{words[0]} ended: {log.read_text()}")
        raise SystemExit("FAILED: the machine is too busy")

    @staticmethod
    def too_late(said):
        """Return True if LeRobot could not connect, because a servo did not answer within 50 ms on a busy machine."""
        if TOO_LATE in said:
            say(f"(once more: {said.strip().splitlines()[0][:110]})")
        return TOO_LATE in said

    def follower(self, *more, camera="", calibration="calibration"):
        return (
            "--robot", "lerobot:so101_follower", "--robot-arg", f"port={self.folder / 'follower'}",
            "--robot-arg", "id=my_arm", "--robot-arg", f"calibration_dir={self.folder / calibration}",
            "--robot-arg", f"cameras={{front: {{type: stripes, width: 32, height: 24, fps: 30{camera}}}}}",
            *more,
        )  # fmt: skip

    def leader(self, option, *more):
        return (
            f"--{option}", "lerobot:so101_leader", f"--{option}-arg", f"port={self.folder / 'leader'}",
            f"--{option}-arg", "id=my_leader",
            f"--{option}-arg", f"calibration_dir={self.folder / 'calibration'}", *more,
        )  # fmt: skip


def figures(report):
    latency = report["latency_ms"]
    return (
        f"{report['steps']} steps, {report['late']} late, latency p50 {latency['p50']:.1f} ms, "
        f"max {latency['max']:.1f} ms"
    )


def in_order(rows, goals):
    """Return True if the goals contain the rows in their order, each within a tick."""
    left = iter(goals)
    return all(any(np.abs(row - goal).max() <= 1.01 * TICK for goal in left) for row in rows)


def check_motion(goals, what):
    """Check that the steps of the goals are within the limit of speed, including the final stop."""
    steps = np.abs(np.diff(goals[:, :5], axis=0)).max()
    check(steps <= SPEED / RATE_HZ + 2 * TICK, f"{what}: a step of {steps:.2f} degrees on the bus")
    return steps


def recorded(run, folder):
    bus = Bus(folder)
    said = json.loads(
        run(
            "record", "demos.hdf5", *run.follower("--limits", "limits.json"), *run.leader("teleop"),
            "--rate-hz", RATE_HZ, "--episodes", EPISODES, "--steps", STEPS, "--json",
        )
    )  # fmt: skip
    with DatasetFile(folder / "demos.hdf5") as file:
        check(
            file.shape("demo_0", "obs/front_image") == (STEPS, 24, 32, 3), "the shape of the images"
        )
        actions = np.concatenate([file.read(demo, "actions") for demo in file.demos()])
        state = file.read("demo_0", "obs/state")
    _, goals = bus.goals()
    check(len(actions) >= ENOUGH * EPISODES * STEPS, f"the actions have shape {actions.shape}")
    check(in_order(actions, goals), "recorded actions are not what was sent")
    check(actions[:, :5].std() > 10, "the leader did not move the follower")
    lag = np.median(np.abs(state[1:] - actions[: len(state) - 1]).max(axis=1))
    check(lag < 1, f"the follower is {lag:.1f} from where it was sent a step before")
    check(bus.torque()[-1] == 1, "the motors have no torque at the end")
    say(
        f"record: {len(actions)} steps of {EPISODES} episodes, {said['late_steps']} late; each is on the bus in its "
        f"order; greatest step {check_motion(goals, 'record'):.2f} degrees of {SPEED / RATE_HZ:g}"
    )
    return actions


def trained(run, folder):
    """Train shortly on the recorded file; return the run folder."""
    train = {"num_epochs": 10, "obs_normalization": "mean_std"}
    train["action_config"] = {"actions": {"normalization": "min_max"}}
    config = {
        "algo_name": "bc",
        "experiment": {"rollout": {"enabled": False}, "epoch_every_n_steps": 100},
        "train": train,
        "observation": {"modalities": {"obs": {"low_dim": ["state"]}}},
    }
    (folder / "config.json").write_text(json.dumps(config))
    words = ("--config", "config.json", "--dataset", "demos.hdf5", "--output-dir", "runs")
    run("train", *words, own=True)
    return next((folder / "runs").glob("*/*"))


def ran(run, folder, policy, name):
    bus = Bus(folder)
    (episode,) = json.loads(
        run("run", policy, *run.follower("--limits", "limits.json"), "--steps", STEPS, "--json")
    )
    _, goals = bus.goals()
    report = episode["report"]
    check(report["steps"] >= ENOUGH * STEPS and report["freshness_checked"], f"{name}: {report}")
    check(goals[:, :5].std() > 5, f"{name}: the policy did not move the arm")
    check(bus.torque()[-1] == 1, "the motors have no torque at the end")
    say(
        f"{name}: {figures(report)}; greatest step {check_motion(goals, name):.2f} degrees on the bus"
    )


def served(run, folder, policy):
    server = subprocess.Popen(
        run.line("serve", policy, "--port", "0", "--json", own=True),
        env=run.env, cwd=folder, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        line = json.loads(server.stdout.readline())
        ran(run, folder, line["url"], "run, policy served by another environment")
    finally:
        server.terminate()
        server.wait(20)


def replayed(run, folder, actions):
    bus = Bus(folder)
    said = json.loads(run("replay", "demos.hdf5", *run.follower("--json")))
    _, goals = bus.goals()
    sent = said["report"]["steps"]
    check(sent >= ENOUGH * STEPS, f"replay: {sent} steps")
    check(in_order(actions[:sent], goals), "replay: other goals than were recorded")
    say(f"replay: {figures(said['report'])}; each as recorded, within a tick of {TICK:.3f} degrees")


def taken_over(run, folder, policy):
    """Test a take-over by the space bar; before it, the leader follows the policy."""
    bus, leader = Bus(folder), Bus(folder, "leader")
    master, slave = pty.openpty()
    process, log = run.start(
        STEPS // 2, "run", policy, *run.follower("--limits", "limits.json"), "--steps", STEPS, "--json",
        *run.leader("take-over", "--take-over-arg", "acts=key"), stdin=slave, stdout=subprocess.PIPE,
    )  # fmt: skip
    _, fed = leader.goals()
    os.write(master, b" ")
    text, _ = process.communicate(timeout=120)
    os.close(master)
    os.close(slave)
    check(process.returncode == 0, f"take-over: {log.read_text()}")
    (episode,) = json.loads(text)
    acted = episode["report"]["interventions"]
    check(STEPS // 4 < acted < STEPS - STEPS // 4, f"take-over: {acted} steps by a person")
    check(len(fed) > STEPS // 4, "take-over: the leader got no goals to follow")
    check(leader.torque()[-1] == 0, "take-over: the leader has torque in a person's hand")
    steps = check_motion(bus.goals()[1], "take-over")
    say(
        f"take-over: {acted} of {STEPS} steps by a person, {len(fed)} goals of the leader before; greatest step "
        f"{steps:.2f} degrees"
    )


def frozen(run, folder, policy):
    """Test that the robot is stopped, and does not move, when a camera freezes."""
    bus = Bus(folder)
    said = run(
        "run", policy, *run.follower("--limits", "limits.json", camera=", freezes_after_s: 3"),
        "--steps", 20 * STEPS, code=1,
    )  # fmt: skip
    times, goals = bus.goals()
    last = np.flatnonzero(np.abs(np.diff(goals, axis=0)).max(axis=1) > TICK)[-1] + 1
    held = times[-1] - times[last]
    check(held < UNTIL_STOPPED_S, f"frozen camera: stopped after {held:.1f} s")
    say(f"frozen camera: no motion for {held:.2f} s, then stopped: {said.splitlines()[-1][:90]}")


def refused(run, folder, policy):
    bus = Bus(folder)
    said = run("run", policy, *run.follower(calibration="empty"), code=2)
    check("lerobot-calibrate --robot.type=so101_follower" in said, said)
    check(len(bus.goals()[0]) == 0, "an arm without calibration was moved")
    say(f"no calibration: {said.splitlines()[-1][:120]} ...")


def unplugged(run, folder, policy, process):
    """Test a disconnected bus: the exit code is 1, and a message requests the emergency stop."""
    command, log = run.start(
        10, "run", policy, *run.follower("--limits", "limits.json"), "--steps", 20 * STEPS,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    process.stdin.close()
    started = time.monotonic()
    command.wait(60)
    said = log.read_text()
    check(command.returncode == 1, f"unplugged: exit code {command.returncode}\n{said}")
    check("PRESS THE EMERGENCY STOP" in said, said)
    say(f"unplugged: ended after {time.monotonic() - started:.1f} s, emergency stop requested")


def main(folder, python):
    folder = Path(folder).resolve()
    run = Commands(folder, python)
    servo = {"drive_mode": 0, "homing_offset": 0, "range_min": 1024, "range_max": 3072}
    (folder / "calibration").mkdir()
    for name in ("my_arm", "my_leader"):
        motors = {motor: {"id": k, **servo} for k, motor in enumerate(MOTORS, 1)}
        (folder / "calibration" / f"{name}.json").write_text(json.dumps(motors))
    (folder / "limits.json").write_text(json.dumps({"margin": 0.5, "speed": SPEED}))
    with arm(folder, "leader", "--swings"), arm(folder, "follower") as follower:
        actions = recorded(run, folder)
        policy = trained(run, folder)
        ran(run, folder, policy, "run")
        served(run, folder, policy)
        replayed(run, folder, actions)
        taken_over(run, folder, policy)
        frozen(run, folder, policy)
        refused(run, folder, policy)
        unplugged(run, folder, policy, follower)


if __name__ == "__main__":
    main(*sys.argv[1:])
