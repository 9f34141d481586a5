import pytest

from imitate.evaluate.result import EpisodeResult, EvalResult


def result(lengths, *, successes=0, horizon=400, longest_demo=380):
    """An evaluation; the first episodes succeed."""
    episodes = tuple(
        EpisodeResult(i, i, i < successes, float(i < successes), length, i < successes)
        for i, length in enumerate(lengths)
    )
    return EvalResult(
        env_name="Can",
        checkpoint=None,
        episodes=episodes,
        planned=len(episodes),
        horizon=horizon,
        seed=0,
        mode="processes",
        workers=1,
        wall_s=1.0,
        longest_demo=longest_demo,
    )


def test_failures_that_end_by_the_clock_are_told_of_where_demonstrations_are_that_long():
    played = result([250] * 26 + [400] * 19 + [90] * 5, successes=26)
    assert played.horizon_note("--horizon ") == (
        "19 of 24 failures ended at the horizon of 400; demonstrations last up to 380 steps: --horizon 760"
    )
    assert played.to_dict()["out_of_time"] == 19


@pytest.mark.parametrize(
    "played",
    [
        result([400] * 10, longest_demo=90),
        result([400] * 10, longest_demo=None),
        result([400] * 4 + [90] * 6),
        result([250] * 10, successes=10),
        result([400] * 10, successes=10),
    ],
    ids=["short demos", "unknown", "fails otherwise", "all succeed", "succeed at the end"],
)
def test_nothing_is_said_where_the_horizon_is_not_the_reason(played):
    assert played.horizon_note("--horizon ") is None
