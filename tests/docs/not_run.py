"""Commands of the documentation that no test runs, each with the reason.

Patterns are searched in ``page: command``. `tests/docs/test_commands.py` parses these commands all the same.
"""

NOT_RUN = {
    r"^docs/robots\.md: imitate train .*corrections\.hdf5": "a person; tests/train/test_robot_training.py",
    r"^docs/results": "measurements of minutes to days; their numbers stand beside them",
    r": python -m tools.fuzz_readers": "minutes; tests/data/formats/test_damage.py has fewer cases",
    r": python -m benchmarks": "measurements of minutes to days",
    r" \[--": "a synopsis",
    r": python train.py": "Diffusion Policy's program",
    r"gym_pusht": "a package that wants other versions; tools/interop/gym_worlds.sh",
    r"ogbench": "a package beside the tests' own; tests/envs/worlds/test_ogbench.py has a stand-in",
    r"collect .*(--quality|--human-like)": "robosuite's demonstrators; tests/collect",
    r"--env robot:my_robots": "a person makes the scene ready; tests/deploy/robot/test_robot_env.py plays one",
    r"check-deploy ws:": "a server; tests/cli/test_check_deploy.py",
    r"--join rtc": "a policy that is guided; tests/cli/test_robot_verbs.py",
    r"dataset migrate-env": "a file of an older robosuite; tests/cli/test_rewriting.py has one",
    r"dinov2_vits14_pretrain.pth": "weights that are downloaded; tests/models reads files of that form",
    r"--device cuda": "GPUs; scripts/gpu_check.sh",
    r"acting=central": "workers in processes of their own; tests/train/online",
    r"imitate compare .*my_robots": "a person judges; tests/cli/test_compare.py plays one",
    r"log_wandb": "the package wandb, and its service",
    r"dataset render": "robosuite's cameras; tests/cli/test_collect.py",
    r": (pip|python3 -m venv)": "installs packages; tests/scripts builds the package and installs it",
    r": bash scripts/(quickstart|test|docs)\.sh": "minutes; .ci/run runs scripts/test.sh",
    r"dataset download": "needs the network; tests/data downloads from a server on this machine",
    r"^docs/encoders\.md: imitate (collect|train|sweep) .*(Lift|lift/bc_(inverse_)?image)": "minutes on "
    "robosuite; the tutorial's own commands run, smaller",
    r": (ray|srun|HEAD=|export RAY)": "a cluster of several machines; the tutorial of docs/cluster.md runs on Ray",
    r"imitate cluster": "a cluster; tests/cli/test_cluster.py",
    r"lerobot:so101": "hardware; tools/interop/lerobot_robot.sh runs LeRobot's robots on simulated motors",
    r"(--teleop|--take-over) (keyboard|gamepad|spacemouse)": "a person at a device; tests/deploy plays one",
}
