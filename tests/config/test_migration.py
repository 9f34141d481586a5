"""Trees as robomimic's releases write them, described here key by key."""

import json
import logging
import re

import pytest

from imitate.config import load_config
from imitate.config.config import put
from imitate.config.loading import STRAY_KEYS, migrate

NAMES_05 = """
experiment.name "test"; experiment.validate false;
experiment.logging {"terminal_output_to_txt": true, "log_tb": true, "log_wandb": false, "wandb_proj_name": "debug"};
experiment.save.enabled true; experiment.save.every_n_seconds null; experiment.save.every_n_epochs 50;
experiment.save.epochs []; experiment.save.on_best_validation false;
experiment.save.on_best_rollout_return false; experiment.save.on_best_rollout_success_rate true;
experiment.epoch_every_n_steps 100; experiment.validation_epoch_every_n_steps 10; experiment.env null;
experiment.additional_envs null; experiment.render false; experiment.render_video true;
experiment.keep_all_videos false; experiment.video_skip 5;
experiment.rollout {"enabled": true, "n": 50, "horizon": 400, "rate": 50, "warmstart": 0, "terminate_on_success": true};
experiment.env_meta_update_dict {}; experiment.ckpt_path null; train.data null;
train.output_dir "../bc_trained_models"; train.normalize_weights_by_ds_size false; train.num_data_workers 0;
train.hdf5_cache_mode "all"; train.hdf5_use_swmr true; train.hdf5_load_next_obs false;
train.hdf5_normalize_obs false; train.hdf5_filter_key null; train.hdf5_validation_filter_key null;
train.seq_length 1; train.pad_seq_length true; train.frame_stack 1; train.pad_frame_stack true;
train.dataset_keys ["actions", "rewards", "dones"]; train.action_keys ["actions"];
train.action_config.actions.normalization null; train.goal_mode null; train.cuda true; train.batch_size 100;
train.num_epochs 2000; train.seed 1; train.max_grad_norm null; algo.optim_params.policy.optimizer_type "adam";
algo.optim_params.policy.learning_rate.initial 0.0001; algo.optim_params.policy.learning_rate.decay_factor 0.1;
algo.optim_params.policy.learning_rate.epoch_schedule [];
algo.optim_params.policy.learning_rate.scheduler_type "multistep";
algo.optim_params.policy.regularization.L2 0.0;
algo.loss {"l2_weight": 1.0, "l1_weight": 0.0, "cos_weight": 0.0}; algo.actor_layer_dims [1024, 1024];
algo.gaussian.enabled false; algo.gaussian.fixed_std false; algo.gaussian.init_std 0.1;
algo.gaussian.min_std 0.01; algo.gaussian.std_activation "softplus"; algo.gaussian.low_noise_eval true;
algo.gmm {"enabled": false, "num_modes": 5, "min_std": 0.0001, "std_activation": "softplus", "low_noise_eval": true};
algo.vae.enabled false; algo.vae.latent_dim 14; algo.vae.latent_clip null; algo.vae.kl_weight 1.0;
algo.vae.decoder {"is_conditioned": true, "reconstruction_sum_across_elements": false};
algo.vae.prior.learn false; algo.vae.prior.is_conditioned false; algo.vae.prior.use_gmm false;
algo.vae.prior.gmm_num_modes 10; algo.vae.prior.gmm_learn_weights false; algo.vae.prior.use_categorical false;
algo.vae.prior.categorical_dim 10; algo.vae.prior.categorical_gumbel_softmax_hard false;
algo.vae.prior.categorical_init_temp 1.0; algo.vae.prior.categorical_temp_anneal_step 0.001;
algo.vae.prior.categorical_min_temp 0.3; algo.vae.encoder_layer_dims [300, 400];
algo.vae.decoder_layer_dims [300, 400]; algo.vae.prior_layer_dims [300, 400]; algo.rnn.enabled false;
algo.rnn.horizon 10; algo.rnn.hidden_dim 400; algo.rnn.rnn_type "LSTM"; algo.rnn.num_layers 2;
algo.rnn.open_loop false; algo.rnn.kwargs.bidirectional false; algo.transformer.enabled false;
algo.transformer.context_length 10; algo.transformer.embed_dim 512; algo.transformer.num_layers 6;
algo.transformer.num_heads 8; algo.transformer.emb_dropout 0.1; algo.transformer.attn_dropout 0.1;
algo.transformer.block_output_dropout 0.1; algo.transformer.sinusoidal_embedding false;
algo.transformer.activation "gelu"; algo.transformer.supervise_all_steps false;
algo.transformer.nn_parameter_for_timesteps true; algo.transformer.pred_future_acs false;
observation.modalities.obs.low_dim ["robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object"];
observation.modalities.obs.rgb []; observation.modalities.obs.depth []; observation.modalities.obs.scan [];
observation.modalities.goal {"low_dim": [], "rgb": [], "depth": [], "scan": []};
observation.encoder.low_dim.core_class null; observation.encoder.rgb.core_class "VisualCore";
observation.encoder.depth.core_class "VisualCore"; observation.encoder.scan.core_class "ScanCore";
meta {"hp_base_config_file": null, "hp_keys": [], "hp_values": []}
"""
NOT_BEFORE_05 = (
    *("train.action_keys", "train.action_config", "train.max_grad_norm", "experiment.ckpt_path"),
    *("train.normalize_weights_by_ds_size", "experiment.env_meta_update_dict"),
)
ENCODER_SIBLINGS = {"core_kwargs": {}, "obs_randomizer_class": None, "obs_randomizer_kwargs": {}}


def robomimic_bc(without=()):
    tree = {"algo_name": "bc"}
    for line in re.split(r";\s", NAMES_05.strip()):
        path, _, value = line.partition(" ")
        if not path.startswith(tuple(without) or "-"):
            put(tree, path, json.loads(value))
    for encoder in tree.get("observation", {}).get("encoder", {}).values():
        encoder.update(json.loads(json.dumps(ENCODER_SIBLINGS)))
    return tree


def differences(wanted, found, path=""):
    for key, value in wanted.items():
        if isinstance(value, dict) and isinstance(found.get(key), dict):
            yield from differences(value, found[key], f"{path}{key}.")
        elif key not in found or found[key] != value:
            yield f"{path}{key}"


def test_the_tree_of_05_loads_unchanged(caplog):
    tree = robomimic_bc()
    config = load_config(tree)
    assert list(differences(tree, config.to_dict())) == []
    assert load_config(config.to_json()) == config
    assert caplog.records == []


def test_robomimics_defaults_are_ours_but_for_a_few():
    """So a partial file means the same to both: null for next observations is false for bc."""
    defaults = load_config({"algo_name": "bc"}).to_dict()
    assert list(differences(robomimic_bc(), defaults)) == [
        "train.output_dir",
        "train.hdf5_cache_mode",
        "train.hdf5_load_next_obs",
    ]


def test_the_tree_of_03_and_04_loads_unchanged():
    tree = robomimic_bc(NOT_BEFORE_05)
    assert "max_grad_norm" not in tree["train"]
    tree["train"]["data"] = "low_dim.hdf5"
    config = load_config(tree)
    tree["train"].pop("data")
    assert list(differences(tree, config.to_dict())) == []
    assert config.train.data[0].path == "low_dim.hdf5"


def test_stray_keys_are_dropped_with_a_warning(caplog):
    tree = robomimic_bc()
    tree["experiment"]["mse"] = {}
    tree["algo"]["optim_params"]["policy"]["num_train_batches"] = 100
    tree["algo"]["optim_params"]["policy"]["num_epochs"] = 2000
    with caplog.at_level(logging.WARNING):
        config = load_config(tree)
    assert config == load_config(robomimic_bc())
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "experiment.mse",
        "algo.optim_params.policy.num_train_batches",
        "algo.optim_params.policy.num_epochs",
    ]
    assert len(STRAY_KEYS) == 3
    assert caplog.records[0].getMessage() == "experiment.mse: not supported: dropped"


def test_the_transformer_template(caplog):
    tree = robomimic_bc((*NOT_BEFORE_05, "train.hdf5_validation_filter_key", "meta"))
    put(tree, "experiment.mse", {})
    optimizer = "algo.optim_params.policy"
    linear = {"scheduler_type": "linear", "epoch_schedule": [100]}
    for path, value in {
        **{"experiment.validate": True, "train.hdf5_cache_mode": "low_dim"},
        **{"train.frame_stack": 10, "train.dataset_keys": ["actions"]},
        **{f"{optimizer}.optimizer_type": "adamw", f"{optimizer}.regularization.L2": 0.01},
        **{f"{optimizer}.learning_rate.{key}": value for key, value in linear.items()},
        **{"algo.actor_layer_dims": [], "algo.gmm.enabled": True},
        **{f"algo.{part}": {"enabled": False} for part in ("gaussian", "vae", "rnn")},
        "algo.transformer": {"enabled": True, "supervise_all_steps": False, "num_layers": 6},
    }.items():
        put(tree, path, value)
    config = load_config(tree)
    del tree["experiment"]["mse"]
    assert list(differences(tree, config.to_dict())) == []
    assert config.algo.rnn.kwargs.bidirectional is False
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == ["experiment.mse"]


def test_images_of_01(caplog):
    tree = robomimic_bc((*NOT_BEFORE_05, "algo.transformer", "observation"))
    backbone = {"pretrained": False, "input_coord_conv": True}
    pool = {"num_kp": 16, "temperature": 1.0}
    crop = {"crop_height": 76, "crop_width": 76}
    randomizer = {"obs_randomizer_class": "CropRandomizer", "obs_randomizer_kwargs": crop}
    obs = {"low_dim": ["robot0_eef_pos"], "image": ["agentview_image"]}
    tree["observation"] = {
        "modalities": {"obs": obs, "goal": {"low_dim": [], "image": []}},
        "encoder": {
            **{"visual_core": "ResNet18Conv", "visual_core_kwargs": backbone, **randomizer},
            **{"use_spatial_softmax": True, "spatial_softmax_kwargs": pool},
            "visual_feature_dimension": 32,
        },
    }
    observation = load_config(tree).observation
    assert observation.modalities.obs.rgb == ("agentview_image",)
    assert "image" not in observation.modalities.obs
    core = {"backbone_class": "ResNet18Conv", "backbone_kwargs": backbone, "feature_dimension": 32}
    core |= {"pool_class": "SpatialSoftmax", "pool_kwargs": pool}
    shared = {"share": False, "feature_activation": "relu", **randomizer}
    rgb = observation.encoder.rgb.to_dict()
    assert rgb == {"core_class": "VisualCore", "core_kwargs": core, **shared}


def test_images_of_01_without_spatial_softmax():
    encoder = {"visual_core": "ResNet18Conv", "use_spatial_softmax": False}
    config = load_config({"algo_name": "bc", "observation": {"encoder": encoder}})
    assert "pool_class" not in config.observation.encoder.rgb.core_kwargs


def test_core_keys_beside_core_kwargs_of_02():
    core = {"feature_dimension": 64, "pool_class": "SpatialSoftmax", "pool_kwargs": {"num_kp": 32}}
    encoder = {
        "low_dim": {"feature_dimension": None, "core_class": None, "core_kwargs": {}},
        "rgb": {"core_class": "VisualCore", "core_kwargs": {"backbone_class": "R"}, **core},
    }
    config = load_config({"algo_name": "bc", "observation": {"encoder": encoder}})
    assert config.observation.encoder.low_dim.core_kwargs.to_dict() == {}
    assert config.observation.encoder.rgb.core_kwargs.to_dict() == {**core, "backbone_class": "R"}


@pytest.mark.parametrize("observation", [None, [], {"modalities": None}, {"encoder": 3}])
def test_a_malformed_observation_is_left_to_the_check(observation):
    with pytest.raises(Exception, match="observation.*wanted an object"):
        load_config({"algo_name": "bc", "observation": observation})


def test_hierarchical_observations_are_renamed_inside():
    tree = {"observation": {"planner": {"modalities": {"subgoal": {"image": ["a"]}}}}}
    planner = {"modalities": {"subgoal": {"rgb": ["a"]}}}
    assert migrate(tree) == {"observation": {"planner": planner}}
