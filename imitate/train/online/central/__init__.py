"""Central acting: environment workers without networks ask policy workers for actions.

A policy worker (:mod:`imitate.train.online.central.policy_worker`) has a copy of the policy and answers all waiting
requests with one batch. An environment worker (:mod:`imitate.train.online.central.env_worker`) steps its environments
in a ring of groups: while one group waits for actions, the next one steps. They communicate directly, through a socket
with a token (:mod:`imitate.train.online.central.requests`);
:class:`imitate.train.online.central.collector.CentralCollector` sends the weights, asks for steps and replaces workers
that are lost.

A policy worker keeps nothing between two requests: recurrent states and plans are sent with the observations, and the
exploration noise of a step depends on seed, environment, episode and step alone. So results do not depend on which
worker answers, on the other requests in its batch, or on replacements.
"""
