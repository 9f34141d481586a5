"""Train a policy with a plain loop that calls only the methods of `Algo`.

python examples/simple_train_loop.py datasets/lift/scripted.hdf5 model.pth
"""

import sys

import torch
from torch.utils.data import DataLoader

from imitate import SequenceDataset, algo_factory, load_config

OBS_KEYS = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object")


def main(
    dataset_path: str, model_path: str, num_epochs: int = 5, steps_per_epoch: int = 100
) -> float:
    """Train, save the weights, and return the mean loss of the last epoch."""
    config = load_config(
        {
            "algo_name": "bc",
            "experiment": {"epoch_every_n_steps": steps_per_epoch},
            "train": {"data": dataset_path, "num_epochs": num_epochs},
            "algo": {"actor_layer_dims": [256, 256]},
            "observation": {"modalities": {"obs": {"low_dim": list(OBS_KEYS)}}},
        }
    )
    dataset = SequenceDataset(hdf5_path=dataset_path, obs_keys=OBS_KEYS)
    loader = DataLoader(dataset, batch_size=100, shuffle=True)
    model = algo_factory(
        config.algo_name,
        config,
        dataset.obs_shapes,
        ac_dim=dataset.action_dims["actions"],
        device="cpu",
    )

    batches = iter(loader)
    for epoch in range(1, num_epochs + 1):
        model.set_train()
        losses = []
        for _ in range(steps_per_epoch):
            try:
                batch = next(batches)
            except StopIteration:
                batches = iter(loader)
                batch = next(batches)
            batch = model.process_batch_for_training(batch)
            info = model.train_on_batch(batch, epoch)
            losses.append(model.log_info(info)["Loss"])
        model.on_epoch_end(epoch)
        mean_loss = sum(losses) / len(losses)
        print(f"epoch {epoch}: loss {mean_loss:.4f}")

    torch.save(dict(model=model.serialize()), model_path)
    return mean_loss


if __name__ == "__main__":
    main(*sys.argv[1:3])
