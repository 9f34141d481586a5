"""Let the policy server run a bundle: the networks are shared, and each session has its own memory.

The module is separate from ``policy.py``, which robots use without the packages of a server.
"""

from __future__ import annotations

from collections.abc import Sequence

from imitate.deploy.bundle.policy import BundlePolicy, BundleState
from imitate.deploy.bundle.spec import Actions
from imitate.deploy.server.session import Ask, ChunkAsk, Prediction
from imitate.system.instructions import LANGUAGE_KEY


class ServedBundle:
    """Answers the sessions of a policy server with one bundle, see :class:`imitate.deploy.server.server.Served`.

    Args:
        policy: policy of the bundle; no other code may use it meanwhile.
    """

    def __init__(self, policy: BundlePolicy, weights: str = "") -> None:
        self._policy, self.weights = policy, weights
        self.schema = policy.schema

    def begin(self, lang: str | None) -> BundleState:
        """Return the memory at the beginning of an episode."""
        return self._policy.begin(lang)

    def cut(self, state: BundleState) -> BundleState:
        """Return the memory without planned actions."""
        return self._policy.cut(state)

    def predict(self, asks: Sequence[Ask]) -> Sequence[Prediction]:
        """Answer the observations of several sessions, one after the other."""
        answers = []
        for ask in asks:
            planned, state = self._policy.step(ask.state, ask.obs, ask.goal)
            answers.append(Prediction(planned[0], planned, state))
        return answers

    def predict_chunks(self, asks: Sequence[ChunkAsk]) -> Sequence[Actions]:
        """Predict a chunk for each of several sessions, whose memories are neither read nor changed."""
        return [self._chunk(ask) for ask in asks]

    def _chunk(self, ask: ChunkAsk) -> Actions:
        lang_emb = ask.state.lang_emb
        words = {} if lang_emb is None else {LANGUAGE_KEY: lang_emb}
        return self._policy.predict_chunk([{**obs, **words} for obs in ask.history], ask.planned)
