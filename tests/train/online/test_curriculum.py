"""Stages of a curriculum: when the next one begins, in which environments a policy is evaluated."""

from types import SimpleNamespace as Words

import pytest

from imitate.config.online import CurriculumConfig
from imitate.errors import ConfigError
from imitate.train.online.curriculum import RETURN, STAGE, SUCCESS, Curriculum, stage_metas

METAS = tuple({"env_name": "Ledge-v0", "type": 2, "env_kwargs": {"far": n}} for n in range(3))


def curriculum(*untils, evaluate="both", names=("near", None, "far")):
    stages = [
        {"name": name, "until": until} for name, until in zip(names, (*untils, {}), strict=False)
    ]
    tree = {"stages": stages, "evaluate": evaluate}
    return Curriculum(CurriculumConfig.model_validate(tree), METAS[: len(stages)])


@pytest.mark.parametrize(
    ("until", "numbers", "ends"),
    [
        ({"success_rate": 0.5}, {SUCCESS: 0.5, RETURN: 0.0}, True),
        ({"success_rate": 0.5}, {SUCCESS: 0.49, RETURN: 9.0}, False),
        ({"mean_return": 2.0}, {RETURN: 2.0}, True),
        ({"mean_return": 2.0}, {RETURN: 1.9, SUCCESS: 1.0}, False),
        ({"min_steps": 100}, {RETURN: 0.0}, True),
        ({"min_steps": 101}, {RETURN: 0.0}, False),
        ({"success_rate": 0.5, "mean_return": 2.0}, {SUCCESS: 1.0, RETURN: 0.0}, False),
        ({"success_rate": 0.5, "mean_return": 2.0}, {SUCCESS: 0.0, RETURN: 9.0}, False),
        ({"mean_return": 2.0}, {SUCCESS: 1.0}, False),  # of another evaluation
    ],
)
def test_a_stage_ends_where_all_its_conditions_hold(until, numbers, ends):
    found = curriculum(until, {"min_steps": 1})
    assert found.judge(1, 100, numbers) is ends
    assert found.stage == int(ends)


def test_an_evaluation_is_judged_once_and_the_steps_of_a_stage_count_from_its_beginning():
    found = curriculum({"min_steps": 10}, {"min_steps": 10})
    assert found.judge(1, 10, {RETURN: 0.0})
    assert not found.judge(1, 99, {RETURN: 0.0})
    assert not found.judge(2, 19, {RETURN: 0.0})
    assert found.judge(3, 20, {RETURN: 0.0})
    assert found.is_last and not found.judge(4, 99, {RETURN: 0.0})
    assert found.state_dict() == {"stage": 2, "began": 20, "judged": 4}


def test_a_run_is_resumed_in_its_stage_or_the_last_one():
    found = curriculum({"min_steps": 10}, {"min_steps": 10})
    found.load_state_dict({"stage": 1, "began": 50, "judged": 4})
    assert found.state_dict() == {"stage": 1, "began": 50, "judged": 4}
    assert not found.judge(4, 99, {RETURN: 0.0})
    assert not found.judge(5, 59, {RETURN: 0.0})
    assert found.judge(6, 60, {RETURN: 0.0})
    found.load_state_dict({"stage": 7, "began": 0, "judged": 0})
    assert found.stage == 2


def test_success_that_is_not_reported_cannot_end_a_stage():
    with pytest.raises(ConfigError, match="stage 1 of 3, near has until.success_rate"):
        curriculum({"success_rate": 0.5}, {"min_steps": 1}).judge(1, 1, {RETURN: 0.0})


@pytest.mark.parametrize(
    ("evaluate", "first", "last"),
    [("both", [2, 0], [2]), ("stage", [0], [2]), ("last", [2], [2])],
)
def test_environments_of_evaluations(evaluate, first, last):
    found = curriculum({"min_steps": 1}, {"min_steps": 1}, evaluate=evaluate)
    assert [meta["env_kwargs"]["far"] for meta in found.evaluated] == first
    if first[-1] == 0:
        assert found.evaluated[-1]["key"].endswith("(stage 1 of 3, near)")
    found.stage = 2
    assert [meta["env_kwargs"]["far"] for meta in found.evaluated] == last


def test_words_and_metrics_count_from_1():
    found = curriculum({"min_steps": 1}, {"min_steps": 1})
    assert (found.words, found.metrics(), found.meta) == (
        "stage 1 of 3, near",
        {STAGE: 1.0},
        METAS[0],
    )
    found.stage = 1
    assert (found.words, found.metrics()) == ("stage 2 of 3", {STAGE: 2.0})
    assert not found.is_last


def test_the_last_environment_of_an_evaluation_judges_the_stage():
    found, results = curriculum({"min_steps": 1}), [Words(success_rate=1.0, mean_return=9.0)]
    results.append(Words(success_rate=None, mean_return=2.0))
    assert found.numbers(results) == {RETURN: 2.0, STAGE: 1.0}
    assert found.numbers(results[:1]) == {SUCCESS: 1.0, RETURN: 9.0, STAGE: 1.0}


def test_environments_of_stages_and_the_evaluations_that_they_need():
    def made(stages, enabled):
        section = CurriculumConfig.model_validate({"stages": stages})
        online = Words(curriculum=section)
        rollout = Words(enabled=enabled)
        return Words(train=Words(online=online), experiment=Words(rollout=rollout))

    stages = [{"until": {"min_steps": 1}, "env_kwargs": {"far": 5}}, {}]
    meta = {"env_name": "Ledge-v0", "type": 2, "env_kwargs": {"far": 1, "wide": 2}}
    metas = stage_metas(made(stages, True), meta)
    assert [one["env_kwargs"] for one in metas] == [{"far": 5, "wide": 2}, {"far": 1, "wide": 2}]
    assert stage_metas(made([], False), meta) == ()
    with pytest.raises(ConfigError, match="stages are judged by evaluations"):
        stage_metas(made(stages, False), meta)
