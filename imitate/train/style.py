"""One style for all pictures of curves, and the names that they show."""

from __future__ import annotations

from typing import Any

STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 8,
    "axes.titlecolor": "0.35",
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "lines.linewidth": 1.3,
    "lines.markersize": 3,
    "errorbar.capsize": 2,
    "pdf.fonttype": 42,  # embed outlines of letters, which publishers accept
    "ps.fonttype": 42,
}
"""Settings of matplotlib."""
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B2A000")
"""Colours of Okabe and Ito, distinguishable with colour blindness (yellow is darkened)."""
PANEL_INCHES = (3.4, 2.4)
"""Size of a panel; two are the width of two columns of a paper."""
_NAMES = {
    "bc_ensemble": "BC ensemble",
    "cal_ql": "Cal-QL",
    "causal_bc": "causal BC",
    "diffusion_policy": "diffusion policy",
    "flow_policy": "flow policy",
    "ppo_bc": "PPO+BC",
    "rebrac": "ReBRAC",
    "fql": "FQL",
    "residual": "residual",
    "td3_bc": "TD3+BC",
    "vq_bet": "VQ-BeT",
}


def algorithm_name(name: str) -> str:
    """Return the name of an algorithm in the literature, such as ``IQL`` for ``iql``."""
    return _NAMES.get(name, name.upper().replace("_", "-"))


def color(number: int, count: int) -> Any:
    """Return the colour of line ``number`` of ``count``."""
    if count <= len(COLORS):
        return COLORS[number]
    import matplotlib

    return matplotlib.colormaps["turbo"]((number + 0.5) / count)
