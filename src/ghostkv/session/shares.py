"""How a plan's tokens are divided among its nodes. Pure bookkeeping; nothing here depends on when a node runs."""

from __future__ import annotations

from collections.abc import Sequence

from ghostkv.protocol.plan import Plan, divide


class Shares:
    """Each node's share of max_tokens, by target.

    What a node leaves unused goes to the nodes that can only start after it, by target again; those that may run beside
    it get nothing of it, else their text would depend on who was faster. In sum, max_tokens is never exceeded.
    """

    def __init__(self, plan: Plan, max_tokens: int) -> None:
        """Divide `max_tokens` by target."""
        self._targets = [node.target for node in plan.nodes]
        self._after = [plan.descendants(node.index) for node in plan.nodes]
        self._before = [plan.ancestors(node.index) for node in plan.nodes]
        self._tokens = list(divide(max_tokens, self._targets))
        self._first = tuple(self._tokens)

    def of(self, index: int) -> int:
        """What node `index` may generate. Final once all nodes that it waits for have ended."""
        return self._tokens[index]

    def at_most(self, index: int) -> int:
        """The most that node `index` and all nodes that it waits for can generate together."""
        return sum(self._first[node] for node in (*self._before[index], index))

    def end(self, index: int, used: int) -> None:
        """Node `index` has ended after `used` tokens: pass on the rest."""
        after: Sequence[int] = self._after[index]
        unused = self._tokens[index] - used
        self._tokens[index] = used
        if after:
            for node, more in zip(after, divide(unused, [self._targets[node] for node in after]), strict=True):
                self._tokens[node] += more
