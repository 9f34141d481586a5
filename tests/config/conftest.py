"""An algorithm that exists only for the tests of configurations, so that they need no torch."""

from pydantic import Field

from imitate.config import AlgoSection, OpenSection, OptimizerConfig, Section
from imitate.config.algorithms import register


class Widths(Section):
    hidden: int = Field(8, gt=0, description="Hidden units.")
    kwargs: OpenSection = OpenSection(bidirectional=False)


class Toy(AlgoSection):
    tree_defaults = {"train": {"batch_size": 7, "hdf5_load_next_obs": True}}

    optimizer: OptimizerConfig = OptimizerConfig(optimizer_type="adamw")
    widths: Widths = Field(Widths(hidden=16), description="Sizes.")
    loss: str = "l2"

    def conflicts(self, config):
        if self.loss == "sequence" and config.train.seq_length == 1:
            return ["train.seq_length: is 1, but algo.loss is 'sequence': set it to 2 or more"]
        return []


register("config_toy", Toy, lambda section: (object, {}))
register("config_open", None, lambda section: (object, {}))
