"""Numbers of a comparison, worked out by hand."""

import pytest

from imitate.deploy.comparison.comparison import ComparisonOutcome
from imitate.deploy.comparison.trial_file import Redo, Trial, TrialFile

POLICIES = {"A": {"name": "a.pth", "sha256": "aa"}, "B": {"name": "b.pth", "sha256": "bb"}}


@pytest.fixture
def judged(tmp_path):
    """Make the outcome of pairs: for each a word with the letters of the policies that succeeded."""

    def make(*pairs, alpha=0.05, **more):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        file = TrialFile(path, POLICIES, {"alpha": alpha, "judge": "robot"})
        for pair, winners in enumerate(pairs):
            for position in (0, 1):
                letter = file.policy(pair, position)
                file.add(Trial(pair, position, letter in winners, **more.get(letter, {})))
        return ComparisonOutcome(file)

    return make


def test_pairs_are_undone_to_policies_whatever_their_order(judged):
    outcome = judged(*["A"] * 4, *["AB"] * 3, *["B"] * 1, *[""] * 2)
    assert (outcome.pairs, outcome.wins, outcome.losses) == (10, 4, 1)
    assert (outcome.of("A").successes, outcome.of("B").successes) == (7, 4)
    assert outcome.paired.difference == pytest.approx(0.3)
    assert outcome.decided is None
    assert outcome.of("A").interval == pytest.approx((0.397, 0.892), abs=1e-3)


def test_seven_of_seven_decide_and_six_do_not(judged):
    # e(6, 0) is 2^6 * 231 / 1024 = 14.4, e(7, 0) is 2^7 * 429 / 2048 = 26.8.
    assert judged(*["A"] * 6).e_value == pytest.approx(14.4375)
    assert judged(*["A"] * 6).decided is None
    seven = judged(*["B"] * 7)
    assert (seven.e_value, seven.decided) == (pytest.approx(26.8125), "B")
    assert seven.p_value == pytest.approx(1 / 26.8125)
    assert seven.words.startswith("B is better: after 7 pairs only it succeeded in 7 of the 7")
    assert judged(*["A"] * 7, alpha=0.01).decided is None


def test_what_was_decided_stays_decided(judged):
    outcome = judged(*["A"] * 7, *["B"] * 5)
    assert outcome.e_value < 2 and outcome.decided == "A"


def test_half_a_pair_does_not_count(judged):
    outcome = judged("A", "B")
    outcome.file.add(Trial(2, 0, True))
    again = ComparisonOutcome(outcome.file)
    assert (again.pairs, again.of("A").trials, again.of("B").trials) == (2, 1 + 1, 2)


def test_progress_is_the_mean_of_what_was_rated(judged):
    outcome = judged("A", "", A={"progress": 8}, B={"stopped": "late"})
    assert outcome.of("A").progress == 8.0 and outcome.of("B").progress is None
    assert outcome.of("B").stopped == 2


def test_it_is_json(judged):
    import json

    outcome = judged("A", "AB")
    outcome.file.add_redo(Redo(1, 0, "fell"))
    told = json.loads(json.dumps(ComparisonOutcome(outcome.file).to_dict()))
    assert told["redos"][0]["policy"] == outcome.file.policy(1, 0)
    assert told["trials"][0]["policy"] == outcome.file.policy(0, 0)
    assert told["policies"]["A"]["successes"] == 2
    assert told["share_of_differing_won_by_A"][1] == 1.0


def test_before_the_first_pair(judged):
    outcome = judged()
    assert outcome.paired is None
    assert outcome.words == "not decided after 0 pairs: no pair differs (e-value 1, 20 decides)"
