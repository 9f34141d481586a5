"""Every ready configuration trains on a device that is not the CPU; some are resumed and act there as on the CPU."""

import pytest
import torch

from imitate import algo_factory, load_config, policy_from_checkpoint
from imitate.policy.checkpoint import checkpoint_dict, load_checkpoint, save_checkpoint
from tests.algo.test_contract import AC_DIM, PLANNERS, ROOT, SIZES, cases, observation, weights
from tests.tiny import merged, small, tiny_batch

IMAGE = (3, 80, 80)  # as large as the crops of the configurations want
OF_TASKS = ("metaworld", "robosuite")  # the same algorithms and networks with other settings
RESUMED = (
    "bc/bc_rnn_gmm",
    "gail/gail_cartpole",
    "hbc/hbc",
    "iql/iql_recurrent",
    "mbrl/mbrl_pendulum",
    "sac/sac_pendulum",
    "vq_bet/vq_bet",
)
"""Configurations that are saved, resumed and compared with the CPU; a kind of state each."""
RARELY = (
    *("act/act_image", "bc/bc_transformer_rotary", "bc/bc_vae", "bcq/bcq", "causal_bc/causal_bc"),
    *("diffusion_policy/diffusion_policy", "diffusion_policy/diffusion_policy_transformer"),
    *("dqn/dqn_cartpole", "dt/dt", "gl/gl"),
    *("flow_policy/flow_policy", "iris/iris", "ppo/ppo_recurrent_cartpole", "tqc/tqc_pendulum"),
)
"""Further networks and losses."""
RARELY_COUNTED = (
    *("act/act_image", "bc/bc_transformer_rotary", "bcq/bcq_distributional", "iql/iql"),
    *("diffusion_policy/diffusion_policy_transformer", "mbrl/mbrl_pendulum"),
)
"""Their algorithms are counted in another configuration; images in test_training.py."""
CHEAPER = {
    "diffusion_policy": {"algo.ddpm.num_inference_timesteps": 2},
    "mbrl": {"algo.planner": {"horizon": 3, "population": 8, "elites": 2, "iterations": 2}},
}
WAITS_OF_UPDATE = {
    # The gradient penalty is for as many pairs as there are demonstrations in the batch.
    "airl": 1,
    "dac": 1,
    "gail": 1,
    # The number of steps that are learned from is in the data.
    "iql_recurrent": 1,
    "merlin": 1,
    # The tree is in arrays of the processor: two copies per simulation, and those of the roots.
    "muzero": 22,
    "ppo_recurrent": 1,
    "sac_recurrent": 1,
    # A buffer, saved with the codes, says that they have begun; their stage looks at it.
    "vq_bet": 1,
}
"""Times that an update may wait for the device; none where a configuration's name begins with none of these."""
WAITS_OF_BATCH = {
    "iql_recurrent": 1,  # torch wants the lengths of sequences on the CPU
    "merlin": 1,  # steps of padding are left out
    "ppo_recurrent": 1,
    "sac_recurrent": 1,
}
"""Times that the preparation of a batch may wait."""


def allowed(table, path):
    return next((count for name, count in table.items() if path.stem.startswith(name)), 0)


def algo_of(path, device, seed=0):
    """A new algorithm of a configuration with small networks; the same weights on each device."""
    torch.manual_seed(seed)
    tree = load_config(path).to_dict()
    tree = merged(tree, {"algo": small(tree["algo"]), "experiment": {"epoch_every_n_steps": 10}})
    config = load_config(tree)
    config = config.with_overrides(CHEAPER.get(config.algo_name, {}))
    keys = config.observation.modality_of("obs")
    shapes = {key: IMAGE if key.endswith("image") else (SIZES[key],) for key in keys}
    return algo_factory(config.algo_name, config, shapes, AC_DIM, device)


def learned(algo, transfers=None, first=1):
    """Updates in the first stage and one in the last; the waits of each preparation and each update."""
    algo.set_train()
    waits = []
    for seed, epoch in enumerate((*[1] * first, algo.global_config.train.num_epochs)):
        torch.manual_seed(seed)
        counts = []
        for step in ("prepare", "update"):
            if transfers is not None:
                transfers.waits.clear()
            if step == "prepare":
                batch = algo.process_batch_for_training(tiny_batch(algo, seed=seed))
            else:
                algo.train_on_batch(batch, epoch)
            counts.append({} if transfers is None else dict(transfers.waits))
        waits.append(counts)
    return waits


def acted(algo):
    """Actions of five episodes over three steps, of which the second episode begins anew at the last."""
    algo.set_eval()
    torch.manual_seed(9)
    state, actions = algo.initial_state(5), []
    for step in range(3):
        if step == 2:
            begins = torch.tensor([False, True, False, False, False])
            state = algo.reset_state(state, begins.to(algo.device))
        obs = algo.preprocess.prepare_obs(observation(algo, 5, seed=step))
        with torch.no_grad():
            action, state, _ = algo.act(obs, state)
        assert action.device.type == algo.device.type
        actions.append(action.cpu())
    return torch.stack(actions)


def held_out(algo):
    """Metrics of a batch that is not learned from, as floats."""
    algo.set_eval()
    torch.manual_seed(5)
    batch = algo.process_batch_for_training(tiny_batch(algo, seed=5))
    return algo.log_info(algo.train_on_batch(batch, 1, validate=True))


@pytest.mark.slow("each operation of the device goes through Python")
@pytest.mark.parametrize(
    "name", [*RESUMED, *(pytest.param(name, marks=pytest.mark.nightly) for name in RARELY)]
)
def test_it_learns_is_resumed_and_acts_as_on_the_cpu(name, device, tmp_path):
    path = ROOT / "configs" / f"{name}.json"
    ours = algo_of(path, device)
    learned(ours)
    kind = torch.device(device).type
    assert {value.device.type for value in weights(ours).values()} == {kind}

    file = tmp_path / "model.pth"
    shape = {"action_low": [-1.0] * AC_DIM}
    save_checkpoint(checkpoint_dict(ours, env_metadata={}, shape_metadata=shape), file)
    resumed, reference = algo_of(path, device, seed=7), algo_of(path, "cpu", seed=8)
    for algo in (resumed, reference):
        algo.deserialize(load_checkpoint(file)["model"])
    is_simulated = device != "cuda"  # which draws as the CPU does, and has its sums
    if is_simulated:
        assert held_out(resumed) == pytest.approx(held_out(reference), rel=1e-3, abs=1e-4)
    for algo in (ours, resumed):
        learned(algo, first=0)
    close = {"atol": 1e-6, "rtol": 1e-5} if is_simulated else {"atol": 1e-3, "rtol": 1e-2}
    for a, b in zip(ours.nets.parameters(), resumed.nets.parameters(), strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu(), **close)
    if path.parent.name in PLANNERS:
        return
    reference.deserialize(ours.serialize())
    actions = acted(ours)
    assert actions.isfinite().all()
    if is_simulated:
        torch.testing.assert_close(actions, acted(reference), atol=1e-4, rtol=1e-3)
    policy, _ = policy_from_checkpoint(device=device, ckpt_path=file)
    policy.start_episode()
    if not is_simulated:  # whose tensors know no inference mode
        assert policy(observation(ours)).shape == (AC_DIM,)


def counted():
    """A configuration of each structure, the algorithms' first ones always."""
    for case in cases():
        if not case.id.startswith(OF_TASKS):
            marks = [pytest.mark.nightly] if case.id in RARELY_COUNTED else case.marks
            yield pytest.param(*case.values, id=case.id, marks=marks)


@pytest.mark.parametrize("path", list(counted()))
def test_an_update_waits_for_the_device_only_where_it_must(path, transfers):
    algo = algo_of(path, "simgpu")
    first = 2 if path.stem == "vq_bet" else 1  # its stages differ
    for number, (preparation, update) in enumerate(learned(algo, transfers, first)):
        if number > 0:  # the first one makes optimizers and tables
            assert sum(preparation.values()) <= allowed(WAITS_OF_BATCH, path), preparation
            assert sum(update.values()) <= allowed(WAITS_OF_UPDATE, path), update
