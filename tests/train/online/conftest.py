import pytest

from imitate.train.online.central.collector import CentralCollector
from imitate.train.online.workers import ProcessCollector

from .worlds import blueprints, make_algo


@pytest.fixture
def collectors():
    """Makes collectors of workers, one for each given environment, and closes them."""
    opened = []

    def make(*makes, kind=ProcessCollector, algo=None, lanes=1, timeout_s=60.0, **kwargs):
        algo = algo or make_algo()
        plans = blueprints(algo, *makes, lanes=lanes)
        opened.append(kind(plans, algo, step_timeout_s=timeout_s, **kwargs))
        return opened[-1]

    yield make
    for collector in opened:
        collector.close()


@pytest.fixture(params=[ProcessCollector, CentralCollector], ids=["processes", "central"])
def kind(request):
    return request.param
