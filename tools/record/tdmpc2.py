"""Record of a small model of TD-MPC2's authors: its weights, draws, actions and losses.

    python tools/record/tdmpc2.py SOURCE FOLDER

SOURCE is a copy of github.com/nicklashansen/tdmpc2 (commit e9f5932), its folder ``tdmpc2``; the environment needs torch
and tensordict. Draws of random numbers are kept in the order and layout in which imitate asks for them.
"""

import sys
import types
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

SOURCE, FOLDER = Path(sys.argv[1]), Path(sys.argv[2])
SIZES = {
    "latent_dim": 16,
    "mlp_dim": 16,
    "enc_dim": 16,
    "num_enc_layers": 2,
    "num_q": 5,
    "num_bins": 21,
}
PLAN = {"horizon": 3, "num_samples": 32, "num_elites": 8, "num_pi_trajs": 4, "iterations": 3}
LOSSES = {
    "rho": 0.5,
    "consistency_coef": 20,
    "reward_coef": 0.1,
    "value_coef": 0.1,
    "termination_coef": 1,
}
OBS, ACTION, BATCH = 5, 2, 6

text = (
    (SOURCE / "tdmpc2.py")
    .read_text()
    .replace("cuda:0", "cpu")
    .replace(", capturable=True", "")
    .replace("WorldModel(cfg).to(self.device)", "WorldModel(cfg)")
)
scale = (SOURCE / "common/scale.py").read_text().replace("cuda:0", "cpu")
for name in ("hydra", "omegaconf"):  # read by their parser of configurations only
    sys.modules[name] = types.ModuleType(name)
sys.modules["omegaconf"].OmegaConf = object
sys.path.insert(0, str(SOURCE))
sys.modules["common.scale"] = module = types.ModuleType("common.scale")
exec(scale, module.__dict__)
agents: dict = {}
exec(text, agents)

cfg = SimpleNamespace(
    **SIZES,
    **PLAN,
    **LOSSES,
    multitask=False,
    task_dim=0,
    episodic=True,
    obs="state",
    obs_shape={"state": (OBS,)},
    action_dim=ACTION,
    simnorm_dim=8,
    dropout=0.0,
    vmin=-10,
    vmax=10,
    bin_size=20 / (SIZES["num_bins"] - 1),
    log_std_min=-10,
    log_std_max=2,
    lr=3e-4,
    enc_lr_scale=0.3,
    episode_length=500,
    discount_denom=5,
    discount_min=0.95,
    discount_max=0.995,
    compile=False,
    mpc=True,
    temperature=0.5,
    min_std=0.05,
    max_std=2,
    grad_clip_norm=20,
    tau=0.01,
    entropy_coef=1e-4,
    batch_size=BATCH,
    num_channels=32,
)
torch.manual_seed(0)
agent = agents["TDMPC2"](cfg)
with torch.no_grad():  # their last weights begin at 0
    for weight in agent.model.parameters():
        weight.add_(0.3 * torch.randn(weight.shape))
    agent.model.soft_update_target_Q()
agent.model.eval()
draws: list[np.ndarray] = []


def recorded(kind, function):
    def call(*args, **kwargs):
        found = function(*args, **kwargs)
        x = found.detach()
        if kind == "samples":
            x = x.permute(1, 0, 2)
        elif kind == "pair":
            chosen = torch.zeros(len(x))
            chosen[x[:2]] = 1.0
            x = 0.25 + 0.5 * chosen
        elif kind == "waits":
            x = (-x).exp()
        draws.append(x.double().numpy().copy()[None])
        return found

    return call


kept = {}
stored = agent.model.state_dict().items()
model = {k: v.clone() for k, v in stored if "Qs.module" not in k}  # copies without numbers
obs = torch.randn(2, OBS)
originals = torch.randn, torch.randn_like, torch.randperm, torch.Tensor.exponential_
torch.randn = recorded("samples", originals[0])
torch.randn_like = recorded("normal", originals[1])
torch.randperm = recorded("pair", originals[2])
torch.Tensor.exponential_ = recorded("waits", originals[3])
actions = [
    agent._plan(row[None], t0=step == 0, eval_mode=True).numpy() for step, row in enumerate(obs)
]
plan_draws, draws = list(draws), draws[:0]
torch.randn, torch.randn_like, torch.randperm, torch.Tensor.exponential_ = originals
kept |= {f"draw_{n:02d}": x for n, x in enumerate(plan_draws)}
kept |= {"obs": obs.numpy(), "actions": np.stack(actions)}

window = {
    "obs": torch.randn(PLAN["horizon"] + 1, BATCH, OBS),
    "action": torch.rand(PLAN["horizon"], BATCH, ACTION) * 2 - 1,
    "reward": torch.randn(PLAN["horizon"], BATCH, 1),
    "terminated": torch.zeros(PLAN["horizon"], BATCH, 1),
}
window["terminated"][-1, 0] = 1.0
kept |= {f"window_{name}": value.numpy() for name, value in window.items()}
noise = torch.randn(PLAN["horizon"], BATCH, ACTION), torch.randn(PLAN["horizon"] + 1, BATCH, ACTION)
waiting = iter(noise)
torch.randn_like = lambda x: next(waiting)
torch.randperm = lambda n, device=None: torch.arange(n)  # the first two critics
info = agent._update(**window)
kept |= {"noise_target": noise[0].numpy(), "noise_policy": noise[1].numpy()}
kept |= {name: np.asarray(info[name].item()) for name in iter(info)}

FOLDER.mkdir(parents=True, exist_ok=True)
torch.save({"model": model}, FOLDER / "model.pt")
np.savez_compressed(FOLDER / "numbers.npz", **{k: v.astype(np.float32) for k, v in kept.items()})
print(actions, {k: float(v) for k, v in info.items()})
print({k: (tuple(v.shape) if isinstance(v, torch.Tensor) else v) for k, v in model.items()})
