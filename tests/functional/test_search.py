"""Tree search: the numbers of three simulations by hand, the regularized policy, and a game that it never loses."""

import numpy as np
import pytest

from imitate.functional.search import Leaf, Rule, TreeResult, regularized_policy, search

LINES = np.array([7, 56, 448, 73, 146, 292, 273, 84])
"""Rows, columns and diagonals of a board of nine fields, as bits."""
BITS = 1 << np.arange(9)
FIELDS = np.arange(512)[:, None]
"""All sets of fields; the tables below have a row for each."""
WON, OPEN = ((FIELDS & LINES) == LINES).any(1), ((FIELDS & LINES) == 0).sum(1)
FREE = ((FIELDS & BITS) == 0).astype(np.float32)
EQUAL = FREE / np.maximum(FREE.sum(1, keepdims=True), 1)


class TicTacToe:
    """The rules, for many boards at once: the fields (B, 2) of the player to move, and of the other, as bits."""

    def __init__(self, boards, nodes):
        self.boards = np.empty((len(boards), nodes, 2), np.int64)
        self.boards[:, 0] = boards
        self.lanes = np.arange(len(boards))

    def __call__(self, number, parents, choices):
        boards, won, over = moved(self.boards[self.lanes, parents], choices)
        self.boards[:, number] = boards
        # a win counts 1; what follows belongs to the other player
        return leaf(boards, won, np.where(over, 0, -1))


def moved(boards, choices):
    mine, other = boards[:, 0] | BITS[choices], boards[:, 1]
    won = WON[mine]
    return np.stack([other, mine], 1), won, won | ((mine | other) == 511)


def leaf(boards, rewards=0, discounts=1):
    """Equal priors of free fields; the value is a guess from the lines that are still open to each."""
    mine, other = boards.T
    values = np.tanh(0.25 * (OPEN[other] - OPEN[mine]))
    return Leaf(values.astype(np.float32), EQUAL[mine | other], rewards, discounts)


def best(boards, simulations=200):
    found = search(leaf(boards), TicTacToe(boards, simulations + 1), simulations)
    return found.visits.argmax(1)


@pytest.mark.parametrize("begins", [True, False])
def test_a_search_with_the_true_model_never_loses_at_tic_tac_toe(begins):
    """Against every sequence of moves of the other: all positions of a turn are searched at once."""
    boards, outcomes = np.zeros((1, 2), np.int64), []
    mine = begins
    while len(boards):
        if mine:
            boards, won, over = moved(boards, best(boards))
        else:
            rows, choices = np.nonzero(leaf(boards).priors)
            boards, won, over = moved(boards[rows], choices)
        outcomes += [(mine, bool(each)) for each in won[over]]
        boards, mine = np.unique(boards[~over], axis=0), not mine
    assert (False, True) not in outcomes
    assert (True, True) in outcomes and len(outcomes) > 20


def scripted(*steps):
    """A model of two choices that answers from a list, and notes the edges that it is asked for."""
    asked, left = [], list(steps)

    def expand(number, parents, choices):
        asked.append((number, parents[0], choices[0]))
        return Leaf(*(np.array([x], np.float32) for x in left.pop(0)))

    return expand, asked


ROOT = Leaf(*(np.array([x], np.float32) for x in (0.0, [0.75, 0.25], 0.0, 1.0)))


def test_three_simulations_by_hand():
    """c_2 is so large that the weight of the prior is 1.

    1. N = 1: scores 0.75 and 0.25. G = 1 + 2 / 2 = 2, so Q is 2 over a range from 0 to 2.
    2. N = 2: 2/2 + 0.75 sqrt(2) / 2 = 1.53, and 0.25 sqrt(2) = 0.35. At node 1, both edges have its value 2, so the
       prior decides for 1. G = -4 / 2 = -2 there, 1 - 2 / 2 = 0 at the root: Q = 1; the range is now -4 to 2.
    3. N = 3: 1/6 + 0.75 sqrt(3) / 3 = 0.60, and 0.25 sqrt(3) = 0.43. At node 1: 2/6 + 0.1 sqrt(2) = 0.47, and
       -2/6 + 0.9 sqrt(2) / 2 = 0.30. The step ends the episode: G = 0 there, 1 at the root: Q = (2 + 0 + 1) / 3.
    """
    expand, asked = scripted(
        (2.0, [0.1, 0.9], 1.0, 0.5), (-4.0, [0.5, 0.5], 0.0, 0.5), (9.0, [0.5, 0.5], 0.0, 0.0)
    )
    found = search(ROOT, expand, 3, Rule(c_1=1.0, c_2=1e9))
    assert asked == [(1, 0, 0), (2, 1, 1), (3, 1, 0)]
    np.testing.assert_allclose(found.visits, [[3, 0]])
    np.testing.assert_allclose(found.q, [[1, 0]], atol=1e-6)
    np.testing.assert_allclose(found.scaled, [[5 / 6, 4 / 6]], atol=1e-6)
    np.testing.assert_allclose(found.values, [3 / 4], atol=1e-6)


def test_the_weight_of_the_prior_grows_with_the_visits():
    assert Rule(c_1=1.0, c_2=2.0).weight(np.array([3.0])) == pytest.approx(1 + np.log(3))


def test_trees_of_one_batch_do_not_influence_each_other():
    roots, scales = (
        np.array([[0, 0], [1, 16], [257, 16], [3, 48]]),
        np.array([1.0, 1.0, 1.0, 900.0]),
    )

    def searched(roots, scales):
        game = TicTacToe(roots, 41)

        def expand(*edges):
            found = game(*edges)
            return found._replace(values=found.values * scales)

        return search(leaf(roots), expand, 40)

    together = searched(roots, scales)
    for lane in range(4):
        alone = searched(roots[lane : lane + 1], scales[lane : lane + 1])
        for one, many in zip(alone, together, strict=True):
            np.testing.assert_array_equal(one[0], many[lane])


def test_a_step_that_ends_the_episode_is_not_searched_beyond():
    """Two simulations that end with 1, and the model's value 4 of the root: a mean of 2."""
    root = Leaf(*(np.array([x], np.float32) for x in (4.0, [1.0], 0.0, 1.0)))
    expand, asked = scripted(*[(7.0, [1.0], 1.0, 0.0)] * 2)
    found = search(root, expand, 2)
    assert asked == [(1, 0, 0), (2, 0, 0)]
    assert (found.visits.item(), found.q.item(), found.values.item()) == (2, 1, 2)


def test_a_choice_that_is_not_allowed_is_never_taken():
    root = ROOT._replace(priors=np.array([[0.0, 1.0]], np.float32))
    expand, _ = scripted(*[(-1.0, [0.5, 0.5], -1.0, 0.0)] * 50)
    found = search(root, expand, 50)
    assert found.visits.tolist() == [[0, 50]]
    assert regularized_policy(found, root.priors).tolist() == [[0, 1]]


def test_the_regularized_policy_by_hand():
    """Of Q' = (1, 0) and equal priors: l (0.5 / (b - 1) + 0.5 / b) = 1 is a quadratic equation of b."""
    half = np.array([[0.5, 0.5]], np.float32)
    found = TreeResult(
        np.array([[6, 2]], np.float32), *[np.array([[1, 0]], np.float32)] * 2, half[:, 0]
    )
    weight = Rule().weight(np.array(9.0)) * 3 / 11
    b = ((1 + weight) + np.sqrt((1 + weight) ** 2 - 2 * weight)) / 2
    expected = [[weight / 2 / (b - 1), weight / 2 / b]]
    np.testing.assert_allclose(regularized_policy(found, half), expected, atol=1e-6)
    assert sum(expected[0]) == pytest.approx(1)
