"""Keys of robomimic's trees of configuration, which refuse any other.

A string is the names of values; nested sections have their own entry, and beside them ``""`` the names of values.
Recorded from robomimic 0.5's classes; 0.3 has the same but for :data:`SINCE_0_5`.
"""

from __future__ import annotations

from typing import Any

Keys = str | dict[str, Any]

SINCE_0_5 = (
    "algo.actor.transformer.pred_future_acs",
    "algo.transformer.pred_future_acs",
    "experiment.ckpt_path",
    "experiment.env_meta_update_dict",
    "train.action_config",
    "train.action_keys",
    "train.max_grad_norm",
    "train.normalize_weights_by_ds_size",
)
"""Keys, or beginnings of keys, that 0.3 does not have."""

SHARED: dict[str, Keys] = {
    "experiment": {
        "": (
            "name validate epoch_every_n_steps validation_epoch_every_n_steps env "
            "additional_envs render render_video keep_all_videos video_skip "
            "env_meta_update_dict ckpt_path"
        ),
        "logging": "terminal_output_to_txt log_tb log_wandb wandb_proj_name",
        "save": (
            "enabled every_n_seconds every_n_epochs epochs on_best_validation "
            "on_best_rollout_return on_best_rollout_success_rate"
        ),
        "rollout": "enabled n horizon rate warmstart terminate_on_success",
    },
    "train": {
        "": (
            "data output_dir normalize_weights_by_ds_size num_data_workers "
            "hdf5_cache_mode hdf5_use_swmr hdf5_load_next_obs hdf5_normalize_obs "
            "hdf5_filter_key hdf5_validation_filter_key seq_length pad_seq_length "
            "frame_stack pad_frame_stack dataset_keys action_keys goal_mode cuda "
            "batch_size num_epochs seed max_grad_norm"
        ),
        "action_config": {
            "actions": "normalization",
        },
    },
    "meta": "hp_base_config_file hp_keys hp_values",
}

ONE_NETWORK: dict[str, Keys] = {
    "modalities": {
        "obs": "low_dim rgb depth scan",
        "goal": "low_dim rgb depth scan",
    },
    "encoder": {
        "low_dim": "core_class core_kwargs obs_randomizer_class obs_randomizer_kwargs",
        "rgb": "core_class core_kwargs obs_randomizer_class obs_randomizer_kwargs",
        "depth": "core_class core_kwargs obs_randomizer_class obs_randomizer_kwargs",
        "scan": "core_class core_kwargs obs_randomizer_class obs_randomizer_kwargs",
    },
}

WITH_SUBGOALS: dict[str, Keys] = {
    "modalities": {
        "obs": "low_dim rgb depth scan",
        "goal": "low_dim rgb depth scan",
        "subgoal": "low_dim rgb depth scan",
    },
    "encoder": {
        "low_dim": "core_class core_kwargs obs_randomizer_class obs_randomizer_kwargs",
        "rgb": "core_class core_kwargs obs_randomizer_class obs_randomizer_kwargs",
        "depth": "core_class core_kwargs obs_randomizer_class obs_randomizer_kwargs",
        "scan": "core_class core_kwargs obs_randomizer_class obs_randomizer_kwargs",
    },
}

OBSERVATION: dict[str, Keys] = {
    "bc": ONE_NETWORK,
    "bcq": ONE_NETWORK,
    "cql": ONE_NETWORK,
    "iql": ONE_NETWORK,
    "td3_bc": ONE_NETWORK,
    "gl": WITH_SUBGOALS,
    "hbc": {
        "planner": WITH_SUBGOALS,
        "actor": ONE_NETWORK,
    },
    "iris": {
        "value_planner": {
            "planner": WITH_SUBGOALS,
            "value": ONE_NETWORK,
        },
        "actor": ONE_NETWORK,
    },
    "diffusion_policy": ONE_NETWORK,
}

ONE_OPTIMIZER: dict[str, Keys] = {
    "learning_rate": "initial decay_factor epoch_schedule",
    "regularization": "L2",
}

STAGED_OPTIMIZER: dict[str, Keys] = {
    "": "start_epoch end_epoch",
    "learning_rate": "initial decay_factor epoch_schedule",
    "regularization": "L2",
}

VAE: dict[str, Keys] = {
    "": (
        "enabled latent_dim latent_clip kl_weight encoder_layer_dims decoder_layer_dims "
        "prior_layer_dims"
    ),
    "decoder": "is_conditioned reconstruction_sum_across_elements",
    "prior": (
        "learn is_conditioned use_gmm gmm_num_modes gmm_learn_weights use_categorical "
        "categorical_dim categorical_gumbel_softmax_hard categorical_init_temp "
        "categorical_temp_anneal_step categorical_min_temp"
    ),
}

RNN: dict[str, Keys] = {
    "": "enabled horizon hidden_dim rnn_type num_layers open_loop",
    "kwargs": "bidirectional",
}

TRANSFORMER = (
    "enabled context_length embed_dim num_layers num_heads emb_dropout attn_dropout "
    "block_output_dropout sinusoidal_embedding activation supervise_all_steps "
    "nn_parameter_for_timesteps pred_future_acs"
)

GL: dict[str, Keys] = {
    "": "subgoal_horizon",
    "optim_params": {
        "goal_network": ONE_OPTIMIZER,
    },
    "ae": "planner_layer_dims",
    "vae": VAE,
}

BCQ: dict[str, Keys] = {
    "": "discount n_step target_tau infinite_horizon",
    "optim_params": {
        "critic": STAGED_OPTIMIZER,
        "action_sampler": STAGED_OPTIMIZER,
        "actor": STAGED_OPTIMIZER,
    },
    "critic": {
        "": (
            "use_huber max_gradient_norm value_bounds num_action_samples "
            "num_action_samples_rollout layer_dims"
        ),
        "ensemble": "n weight",
        "distributional": "enabled num_atoms",
    },
    "action_sampler": {
        "": "actor_layer_dims freeze_encoder_epoch",
        "gmm": "enabled num_modes min_std std_activation low_noise_eval",
        "vae": VAE,
    },
    "actor": "enabled perturbation_scale layer_dims",
}

HBC_ACTOR: dict[str, Keys] = {
    "": "actor_layer_dims",
    "optim_params": {
        "policy": {
            "": "optimizer_type",
            "learning_rate": "initial decay_factor epoch_schedule scheduler_type",
            "regularization": "L2",
        },
    },
    "loss": "l2_weight l1_weight cos_weight",
    "rnn": RNN,
    "transformer": (
        "enabled context_length embed_dim num_layers num_heads emb_dropout attn_dropout "
        "block_output_dropout sinusoidal_embedding activation supervise_all_steps "
        "nn_parameter_for_timesteps pred_future_acs"
    ),
}

ALGO: dict[str, dict[str, Keys]] = {
    "bc": {
        "": "actor_layer_dims",
        "optim_params": {
            "policy": {
                "": "optimizer_type",
                "learning_rate": "initial decay_factor epoch_schedule scheduler_type",
                "regularization": "L2",
            },
        },
        "loss": "l2_weight l1_weight cos_weight",
        "gaussian": "enabled fixed_std init_std min_std std_activation low_noise_eval",
        "gmm": "enabled num_modes min_std std_activation low_noise_eval",
        "vae": VAE,
        "rnn": RNN,
        "transformer": (
            "enabled context_length embed_dim num_layers num_heads emb_dropout "
            "attn_dropout block_output_dropout sinusoidal_embedding activation "
            "supervise_all_steps nn_parameter_for_timesteps pred_future_acs"
        ),
    },
    "bcq": BCQ,
    "cql": {
        "": "discount n_step target_tau",
        "optim_params": {
            "critic": ONE_OPTIMIZER,
            "actor": ONE_OPTIMIZER,
        },
        "actor": {
            "": "bc_start_steps target_entropy max_gradient_norm layer_dims",
            "net": {
                "": "type",
                "common": "std_activation use_tanh low_noise_eval",
                "gaussian": "init_last_fc_weight init_std fixed_std",
            },
        },
        "critic": {
            "": (
                "use_huber max_gradient_norm value_bounds num_action_samples cql_weight "
                "deterministic_backup min_q_weight target_q_gap num_random_actions "
                "layer_dims"
            ),
            "ensemble": "n",
        },
    },
    "iql": {
        "": "discount target_tau vf_quantile",
        "optim_params": {
            "critic": ONE_OPTIMIZER,
            "vf": ONE_OPTIMIZER,
            "actor": ONE_OPTIMIZER,
        },
        "actor": {
            "": "layer_dims max_gradient_norm",
            "net": {
                "": "type",
                "common": "std_activation low_noise_eval use_tanh",
                "gaussian": "init_last_fc_weight init_std fixed_std",
                "gmm": "num_modes min_std",
            },
        },
        "critic": {
            "": "layer_dims use_huber max_gradient_norm",
            "ensemble": "n",
        },
        "adv": "clip_adv_value beta use_final_clip",
    },
    "td3_bc": {
        "": "alpha discount n_step target_tau infinite_horizon",
        "optim_params": {
            "critic": STAGED_OPTIMIZER,
            "actor": STAGED_OPTIMIZER,
        },
        "critic": {
            "": "use_huber max_gradient_norm value_bounds layer_dims",
            "ensemble": "n weight",
        },
        "actor": "update_freq noise_std noise_clip layer_dims",
    },
    "gl": GL,
    "hbc": {
        "": "mode actor_use_random_subgoals subgoal_update_interval",
        "latent_subgoal": {
            "": "enabled",
            "prior_correction": "enabled num_samples",
        },
        "planner": GL,
        "actor": HBC_ACTOR,
    },
    "iris": {
        "": "mode actor_use_random_subgoals subgoal_update_interval",
        "latent_subgoal": {
            "": "enabled",
            "prior_correction": "enabled num_samples",
        },
        "value_planner": {
            "": "num_samples",
            "planner": GL,
            "value": BCQ,
        },
        "actor": HBC_ACTOR,
    },
    "diffusion_policy": {
        "optim_params": {
            "policy": {
                "": "optimizer_type",
                "learning_rate": (
                    "initial decay_factor step_every_batch scheduler_type num_cycles "
                    "warmup_steps epoch_schedule"
                ),
                "regularization": "L2",
            },
        },
        "horizon": "observation_horizon action_horizon prediction_horizon",
        "unet": "enabled diffusion_step_embed_dim down_dims kernel_size n_groups",
        "ema": "enabled power",
        "ddpm": (
            "enabled num_train_timesteps num_inference_timesteps beta_schedule "
            "clip_sample prediction_type"
        ),
        "ddim": (
            "enabled num_train_timesteps num_inference_timesteps beta_schedule "
            "clip_sample set_alpha_to_one steps_offset prediction_type"
        ),
    },
}
