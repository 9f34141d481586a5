"""The toy with two ways: what learns the mean fails, what learns the distribution does not."""

from benchmarks.studies.bimodal import draw, trained, walk, write_demos


def test_the_mean_of_two_ways_is_none(tmp_path):
    data = tmp_path / "demos.hdf5"
    write_demos(data)
    mean = walk(trained("bc", data, 400), 50)
    mixture = walk(trained("bc_gmm", data, 400), 50)
    flow = walk(trained("flow_policy", data, 600), 50)
    assert mean.success.mean() < 0.5
    assert mixture.success.mean() > 0.8
    assert flow.success.mean() > 0.7
    # Both ways are taken.
    middle = flow.positions[flow.positions.shape[0] // 2, :, 1]
    assert (middle > 0.2).any()
    assert (middle < -0.2).any()
    picture = tmp_path / "walks.png"
    draw({"mean": mean, "flow": flow}, picture)
    assert picture.stat().st_size > 5000
