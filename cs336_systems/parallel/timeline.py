"""The order in which the parts of a model are used, learned from one pass for the next."""

from cs336_systems.limits import AHEAD


class Timeline:
    """The order of uses in one pass, forward and backward, and the expected next uses."""

    def __init__(self) -> None:
        self._expected: list[int] = []
        self._seen = 0  # number of uses in this pass that matched the expected order
        self._uses: list[int] = []

    def begin_pass(self) -> None:
        """End a pass, and expect its uses in the next one."""
        self._expected, self._uses, self._seen = self._uses, [], 0

    def note(self, index: int) -> None:
        """Record that the part `index` is used now."""
        if self._seen == len(self._uses) and self._expected[self._seen : self._seen + 1] == [index]:
            self._seen += 1
        self._uses.append(index)

    def upcoming(self) -> list[int]:
        """The next uses, at most AHEAD; none if this pass deviates from the order of the last one."""
        if self._seen < len(self._uses):
            return []
        return self._expected[self._seen : self._seen + AHEAD]
