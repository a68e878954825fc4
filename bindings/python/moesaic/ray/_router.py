"""The request router that Ray Serve runs in each process that has a handle of the replicas.

Serve pickles this module by value, so that it has no state of its own.
"""

from __future__ import annotations

from typing import Any, Sequence

from . import _affinity
from ._library import load

_RequestRouter: Any = load("ray.serve.request_router").RequestRouter


class MoesaicRouter(_RequestRouter):  # type: ignore[misc]
    """Sends a request to the replica that is likely to have its beginning and its experts (`_affinity.Router`).

    Calls have a `_replica.Request` as their argument. What replicas hold comes by their routing stats; what they were given,
    and what runs on them, is what this router has sent, so that several routers know less than one.
    """

    def initialize_state(
        self, policy: str = "affinity", prefix_weight: float = 1.0, expert_weight: float = 1.0, slack: int = 2
    ) -> None:
        """The deployment's `request_router_kwargs`. The policy "round-robin" takes replicas in turn."""
        self._policy = policy
        self._turn = 0
        self._router = _affinity.Router(_affinity.Weights(prefix_weight, expert_weight, slack))
        self._views: dict[Any, _affinity.ReplicaView] = {}
        self._stats: dict[Any, str] = {}  # that were read last
        self._learned: dict[Any, int] = {}  # number of the last request that was learned from
        self._sent = _affinity.Sent()

    async def choose_replicas(self, candidate_replicas: Sequence[Any], pending_request: Any = None) -> list[list[Any]]:
        """One replica in each rank: the next is for when it is full."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # when all are full
        replicas = list(candidate_replicas)
        if self._policy == "round-robin":
            self._turn += 1
            first = self._turn % len(replicas) if replicas else 0
            return [[replica] for replica in replicas[first:] + replicas[:first]]
        views = [self._view(replica) for replica in replicas]
        if pending_request is not None:  # asked again, as all were full
            self._sent.withdraw(pending_request.metadata.internal_request_id)
        order = self._router.order(views, _prompt_of(pending_request))
        if pending_request is not None and order:
            self._sent.ask(pending_request.metadata.internal_request_id, views[order[0]])
        return [[replicas[index]] for index in order]

    def update_replicas(self, replicas: Sequence[Any]) -> None:
        """Who has left is forgotten."""
        super().update_replicas(replicas)
        here = {replica.replica_id for replica in replicas}
        for known in (self._views, self._stats, self._learned):
            for gone in [name for name in known if name not in here]:
                del known[gone]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """A replica has taken it."""
        view = self._views.setdefault(replica_id, _affinity.ReplicaView())
        self._sent.take(pending_request.metadata.internal_request_id, replica_id, view)
        prompt = _prompt_of(pending_request)
        if prompt is not None:
            view.prefixes.add(prompt.blocks)

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        """However it has ended; also of requests that a replica did not take."""
        self._sent.end(internal_request_id, replica_id)

    def _view(self, replica: Any) -> _affinity.ReplicaView:
        name = replica.replica_id
        view = self._views.setdefault(name, _affinity.ReplicaView())
        stats = replica.routing_stats
        if stats and self._stats.get(name) != stats["held"]:
            self._stats[name] = stats["held"]
            view.held = _affinity.unpack_bits(stats["held"], stats["experts"])
        for number, words, uses in stats.get("ended", ()):
            if number > self._learned.get(name, 0):
                self._learned[name] = number
                self._router.forecast.learn(words, _affinity.unpack_uses(uses))
        return view


def _prompt_of(pending_request: Any) -> _affinity.Prompt | None:
    if pending_request is None or not pending_request.args:
        return None
    prompt: _affinity.Prompt | None = getattr(pending_request.args[0], "prompt", None)
    return prompt
