"""Conversion of robomimic's configuration to ours: the same tree, with the behaviour of its code spelled out.

robomimic never read some parts of its trees, which are therefore ignored:

* the U-Net of diffusion_policy has the sizes of its weights (256, 512 and 1024 channels), whatever ``algo.unet`` says;
* the trunk of ShallowConv ends in 32 channels, whatever ``output_channel`` says;
* a VAE's decoder sees the observation, whatever ``decoder.is_conditioned`` says;
* pretrained trunks see colours as they are, in [0, 1]; diffusion_policy has GroupNorm in all trunks;
* features of images go through a ReLU, except into a transformer;
* actors of hbc and iris see no subgoal;
* each critic has encoders of its own; transformers are causal, also those that predict future actions, and so act on
  the oldest observation of their window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from imitate.errors import CheckpointError

Tree = dict[str, Any]

UNET = "policy.noise_pred_net."
GROUPS_OF_UNET = 8
"""Number of groups of each GroupNorm, of which the weights have no trace."""


def ours_from_theirs(
    algo_name: str, tree: Tree, normalizes_obs: bool, tensors: Mapping[str, Tensor]
) -> Tree:
    """Return our tree for a policy that acts as theirs.

    Args:
        algo_name: the algorithm.
        tree: theirs, of any release; it may be changed.
        normalizes_obs: true if the checkpoint has statistics of observations.
        tensors: the checkpoint's weights.

    Raises:
        CheckpointError: a part of it works differently here.
    """
    tree["algo_name"] = algo_name
    train = tree.setdefault("train", {})
    train.pop("hdf5_normalize_obs", None)
    train["obs_normalization"] = "mean_std" if normalizes_obs else None
    algo = tree.setdefault("algo", {})
    for encoder in _encoders(tree.get("observation")):
        _spell_out_encoder(encoder, algo_name, algo)
    if algo_name == "diffusion_policy":
        algo["unet"] = {**algo.get("unet", {}), **_unet_sizes(tensors)}
    for section in _sections(algo):
        _spell_out_section(section)
    if algo_name in ("hbc", "iris"):
        algo["actor_sees_subgoal"] = False
    rnn, ddim = algo.get("rnn", {}), algo.get("ddim", {})
    if rnn.get("enabled") and train.get("seq_length", 1) == 1:
        train["seq_length"] = rnn.get("horizon", 10)  # windows of one step are refused here
    if ddim.get("enabled") and ddim.get("prediction_type") == "sample":
        raise CheckpointError(
            "algo.ddim.prediction_type is 'sample': robomimic mixes the predicted chunk up with noise when it acts, "
            "which is not done here"
        )
    return tree


def _unet_sizes(tensors: Mapping[str, Tensor]) -> Tree:
    """Return the section ``algo.unet`` that fits the weights."""
    levels = [
        convolution
        for level in range(len(tensors))
        if (convolution := tensors.get(f"{UNET}down_modules.{level}.0.blocks.0.block.0.weight"))
        is not None
    ]
    step = tensors.get(f"{UNET}diffusion_step_encoder.1.weight")
    if not levels or step is None:
        raise CheckpointError(
            "the file has no U-Net, the only network of robomimic's diffusion_policy"
        )
    return {
        "diffusion_step_embed_dim": step.shape[1],
        "down_dims": [level.shape[0] for level in levels],
        "kernel_size": levels[0].shape[2],
        "n_groups": GROUPS_OF_UNET,
    }


def _encoders(observation: Any) -> Iterator[Tree]:
    """Yield every entry of every ``encoder``, at any depth."""
    if not isinstance(observation, Mapping):
        return
    for name, value in observation.items():
        if name == "encoder" and isinstance(value, Mapping):
            yield from (entry for entry in value.values() if isinstance(entry, dict))
        elif name != "modalities":
            yield from _encoders(value)


def _spell_out_encoder(encoder: Tree, algo_name: str, algo: Tree) -> None:
    if not encoder.get("core_class"):
        return
    if algo.get("transformer", {}).get("enabled") and algo_name == "bc":
        encoder["feature_activation"] = None
    if not str(encoder["core_class"]).startswith("VisualCore"):
        return
    core = encoder["core_kwargs"] = {**(encoder.get("core_kwargs") or {})}
    backbone = core["backbone_kwargs"] = {**(core.get("backbone_kwargs") or {})}
    name = core.get("backbone_class") or "ResNet18Conv"
    if name == "ShallowConv":
        backbone.pop("output_channel", None)
    elif name.startswith("ResNet"):
        backbone["norm"] = "group" if algo_name == "diffusion_policy" else "batch"
        backbone["imagenet_normalization"] = False


def _sections(algo: Tree) -> Iterator[Tree]:
    """Yield each ``algo`` section: that of the algorithm, and those of its parts."""
    yield algo
    for value in algo.values():
        if isinstance(value, dict):
            yield from _sections(value)


def _spell_out_section(section: Tree) -> None:
    optimizers = section.get("optim_params")
    for net in optimizers.values() if isinstance(optimizers, dict) else ():
        for key in ("num_train_batches", "num_epochs"):  # written by its training script
            net.pop(key, None)
    ensemble = section.get("ensemble")
    if isinstance(ensemble, dict):
        ensemble["shared_encoder"] = False
    transformer = section.get("transformer")
    if isinstance(transformer, dict):
        transformer["causal"] = True
    vae = section.get("vae")
    if isinstance(vae, dict) and isinstance(vae.get("decoder"), dict):
        vae["decoder"]["is_conditioned"] = True
