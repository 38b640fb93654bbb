"""The meaning of the quotas, in plain integers: slow, obvious, and equal to the Rust core.

Nothing here is rounded but where the definition rounds, and no integer overflows. The Rust modules
`weights`, `apportion`, `shape`, `offsets` and `tree` explain why each step is as it is; tests
compare the two, and both with exact rational targets.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

ROW = 1 << 32
"""Targets are integers in units of 2^-32 rows."""
MAX_ROWS = 1 << 62
WEIGHT_BITS = 110
OFFSET_BITS = 16
LOOKS = (1, 4, 16, 64)
SWEEPS = 12
FEW_ROWS = 64
FACTOR_BITS = 64
_RESOLUTION = ROW >> 10
_HALF = 1 << (OFFSET_BITS - 1)

Phase = tuple[int, Sequence[float]]
"""Rows and weights per cell."""


def integer_weights(weights: Sequence[float]) -> list[int]:
    """The largest has 110 bits; the others in proportion, rounded to nearest, ties up."""
    exact = [Fraction(weight) for weight in weights]
    top = max(exact)
    power = top.numerator.bit_length() - top.denominator.bit_length()
    if Fraction(2) ** power <= top:
        power += 1  # now 2^(power - 1) <= top < 2^power
    scale = Fraction(2) ** (WEIGHT_BITS - power)
    return [int(weight * scale + Fraction(1, 2)) for weight in exact]


def targets(weights: Sequence[int], rows: int) -> list[int]:
    """Shares of `rows` in units of 2^-32 rows, which add up; largest remainders first."""
    total = sum(weights)
    shares = [divmod(rows * ROW * weight, total) for weight in weights]
    result = [share for share, _ in shares]
    order = sorted(range(len(weights)), key=lambda cell: (-shares[cell][1], cell))
    for cell in order[: rows * ROW - sum(result)]:
        result[cell] += 1
    return result


def boundary_counts(start: Sequence[int], cumulative: Sequence[Sequence[int]]) -> list[list[int]]:
    """Whole counts at the end of each phase, as near to the targets as can be."""

    def within(distance: int) -> list[list[int]] | None:
        nearest = _fill(start, cumulative, distance, by_deadline=False)
        return nearest or _fill(start, cumulative, distance, by_deadline=True)

    high = ROW
    while (best := within(high)) is None:
        high *= 2
    low = high // 2 if high > ROW else 0
    while high - low > _RESOLUTION:
        middle = (low + high) // 2
        found = within(middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def _fill(
    start: Sequence[int], cumulative: Sequence[Sequence[int]], distance: int, *, by_deadline: bool
) -> list[list[int]] | None:
    def least(phase: int, cell: int) -> int:
        return max(0, -(-(cumulative[phase][cell] - distance) // ROW))

    counts = list(start)
    result = []
    for phase, target in enumerate(cumulative):
        optional = []
        for cell in range(len(counts)):
            counts[cell] = max(counts[cell], least(phase, cell))
            most = (target[cell] + distance) // ROW
            if counts[cell] > most:
                return None
            for count in range(counts[cell] + 1, min(most, -(-target[cell] // ROW)) + 1):
                deadline = len(cumulative)
                if by_deadline:
                    later = range(phase + 1, len(cumulative))
                    deadline = next((k for k in later if least(k, cell) >= count), deadline)
                optional.append((deadline, count * ROW - target[cell], cell))
        spare = sum(target) // ROW - sum(counts)
        if not 0 <= spare <= len(optional):
            return None
        for _, _, cell in sorted(optional)[:spare]:
            counts[cell] += 1
        result.append(list(counts))
    return result


Join = tuple[int, int]
Bias = tuple[int, int]


def joins(weights: Sequence[int], bias: Sequence[Bias], look: int) -> list[Join]:
    """Which nodes the tree joins, in order; leaves come first in the numbering."""
    high = 2 * ROW
    while (best := _join(weights, bias, look, high)) is None:
        high *= 2
    low = ROW // 2
    while high - low > _RESOLUTION:
        middle = (low + high) // 2
        found = _join(weights, bias, look, middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def _join(weights: Sequence[int], bias: Sequence[Bias], look: int, bound: int) -> list[Join] | None:
    heap = []
    for leaf, weight in enumerate(weights):
        room = bound - ROW // 2 - (_largest(bias[leaf]) // 2 if look > 1 else 0)
        heap.append((-((room << 64) // weight), weight, leaf))
    heapq.heapify(heap)
    biases = list(bias)
    result: list[Join] = []
    least = 0
    while len(heap) > 1:
        _, weight_a, a = heapq.heappop(heap)
        seen = [heapq.heappop(heap) for _ in range(min(look, len(heap)))]
        heaviest = seen[0][1] + seen[0][1] // 2

        def joint(entry: tuple[int, int, int], a: int = a) -> Bias:
            return biases[a][0] + biases[entry[2]][0], biases[a][1] + biases[entry[2]][1]

        fitting = [entry for entry in seen if entry[1] <= heaviest]
        chosen = min(fitting, key=lambda entry: _largest(joint(entry)))
        for entry in seen:
            if entry is not chosen:
                heapq.heappush(heap, entry)
        least = -chosen[0]
        weight = weight_a + chosen[1]
        node = len(weights) + len(result)
        heapq.heappush(heap, (-(least - (ROW << 63) // weight), weight, node))
        biases.append(joint(chosen))
        result.append((a, chosen[2]))
    return result if least >= 0 else None


def _largest(bias: Bias) -> int:
    return max(abs(bias[0]), abs(bias[1]))


def offsets(weights: Sequence[int], tree: Sequence[Join], bias: Sequence[int]) -> list[int]:
    """The rounding point of every split at one end of the phase, less 1/2, in 2^-16 rows."""
    below = []
    members = [[leaf] for leaf in range(len(weights))]
    half = [0] * len(weights)
    for left, right in tree:
        parts = []
        for child, sign in ((left, 1), (right, -1)):
            total = sum(weights[leaf] for leaf in members[child])
            parts += [(leaf, sign * (weights[leaf] * ROW // total)) for leaf in members[child]]
        members.append(members[left] + members[right])
        below.append(parts)
        for leaf, part in parts:
            half[leaf] += abs(part) << (OFFSET_BITS - 1)
    residual = [units << OFFSET_BITS for units in bias]
    result = [0] * len(tree)
    for _ in range(SWEEPS):
        for node in reversed(range(len(tree))):
            now = result[node]

            def bound(x: int, node: int = node, now: int = now) -> int:
                return max(
                    half[leaf] + abs(residual[leaf] + (x - now) * part)
                    for leaf, part in below[node]
                )

            low, high = -_HALF, _HALF - 1
            while low < high:
                middle = (low + high) // 2
                if bound(middle) <= bound(middle + 1):
                    high = middle
                else:
                    low = middle + 1
            for leaf, part in below[node]:
                residual[leaf] += (low - now) * part
            result[node] = low
    return result


@dataclass(frozen=True)
class Node:
    """Of `m` rows, `(m * share + offset) // whole` go to `left`; children below the number of
    leaves are leaves."""

    whole: int
    share: int
    offset: int
    left: int
    right: int


class Tree:
    """One phase: whole counts per cell, spread over its rows."""

    def __init__(self, counts: Sequence[int], bias: Sequence[Bias]) -> None:
        self.counts = counts
        self.cells = [cell for cell, count in enumerate(counts) if count]
        weights = [counts[cell] for cell in self.cells]
        leaf_bias = [bias[cell] for cell in self.cells]
        best: tuple[int, list[Node]] | None = None
        for look in LOOKS:
            tree = joins(weights, leaf_bias, look)
            ends = [offsets(weights, tree, [b[end] for b in leaf_bias]) for end in (0, 1)]
            nodes, fractions = _nodes(weights, tree, ends)
            self.nodes = nodes
            bound = max(
                self._bound(leaf, weights, fractions, leaf_bias[leaf])
                for leaf in range(len(weights))
            )
            outside = (abs(b) for cell, pair in enumerate(bias) if not counts[cell] for b in pair)
            bound = max(bound, *outside, 0)
            if best is None or bound < best[0]:
                best = bound, nodes
        assert best is not None
        self.bound, self.nodes = best

    def locate(self, m: int) -> tuple[int, int]:
        """Cell and index of row `m`."""
        node = len(self.cells) + len(self.nodes) - 1
        while node >= len(self.cells):
            split = self.nodes[node - len(self.cells)]
            left = (m * split.share + split.offset) // split.whole
            goes_left = ((m + 1) * split.share + split.offset) // split.whole > left
            node, m = (split.left, left) if goes_left else (split.right, m - left)
        return self.cells[node], m

    def counts_at(self, m: int) -> list[int]:
        """Rows of every cell among the first `m`."""
        result = [0] * len(self.counts)
        reached = {len(self.cells) + len(self.nodes) - 1: m}
        for node in range(len(self.cells) + len(self.nodes) - 1, len(self.cells) - 1, -1):
            split = self.nodes[node - len(self.cells)]
            left = (reached[node] * split.share + split.offset) // split.whole
            reached[split.left], reached[split.right] = left, reached[node] - left
        for leaf, cell in enumerate(self.cells):
            result[cell] = reached[leaf]
        return result

    def _bound(
        self, leaf: int, weights: Sequence[int], fractions: Sequence[Sequence[int]], bias: Bias
    ) -> int:
        sizes = [*weights]
        parents: dict[int, tuple[int, bool]] = {}
        for number, node in enumerate(self.nodes):
            sizes.append(sizes[node.left] + sizes[node.right])
            parents[node.left], parents[node.right] = (number, False), (number, True)
        if weights[leaf] <= FEW_ROWS:
            total = sum(weights)
            own = weights[leaf] * ROW + bias[0] - bias[1]
            rows = enumerate(
                self._row_of(leaf, index, sizes, parents) for index in range(weights[leaf])
            )
            peaks = [(i + beside, m + beside) for i, m in rows for beside in (0, 1)]
            errors = [abs(count * ROW + bias[0] - own * m // total) + 1 for count, m in peaks]
            return max(*errors, abs(bias[0]), abs(bias[1]))
        off = [[bias[0], -bias[0]], [bias[1], -bias[1]]]
        factor = 1 << FACTOR_BITS
        child = leaf
        while child in parents:
            number, right = parents[child]
            for end in (0, 1):
                fraction = fractions[number][end]
                for side, part in ((right, fraction + 1), (not right, ROW - fraction + 1)):
                    off[end][side] += -(-part * factor >> FACTOR_BITS)
            node = self.nodes[number]
            share = node.whole - node.share if right else node.share
            factor = -(-factor * share // node.whole)
            child = len(weights) + number
        return max(*off[0], *off[1], 0)

    def _row_of(
        self, child: int, index: int, sizes: Sequence[int], parents: dict[int, tuple[int, bool]]
    ) -> int:
        """The row of the phase that is row `index` of leaf `child`, by bisection at every node."""
        while child in parents:
            number, right = parents[child]
            split = self.nodes[number]
            low, high = index, sizes[len(self.cells) + number] - 1
            while low < high:
                middle = (low + high) // 2
                left = ((middle + 1) * split.share + split.offset) // split.whole
                if (middle + 1 - left if right else left) > index:
                    high = middle
                else:
                    low = middle + 1
            child, index = len(self.cells) + number, low
        return index


def _nodes(
    weights: Sequence[int], tree: Sequence[Join], ends: Sequence[Sequence[int]]
) -> tuple[list[Node], list[list[int]]]:
    sizes = [*weights]
    nodes, fractions = [], []
    for number, (left, right) in enumerate(tree):
        size = sizes[left] + sizes[right]
        bits = min(OFFSET_BITS, (2 * MAX_ROWS // size).bit_length() - 1)
        at = [(ends[end][number] + _HALF) >> (OFFSET_BITS - bits) for end in (0, 1)]
        share = (sizes[left] << bits) + at[1] - at[0]
        nodes.append(Node(size << bits, share, at[0] * size, left, right))
        fractions.append([(fraction * ROW) >> bits for fraction in at])
        sizes.append(size)
    return nodes, fractions


class Quotas:
    """A run of phases without history."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        phases = [phase for phase in phases if phase[0]]
        cells = len(phases[0][1])
        own = [targets(integer_weights(weights), rows) for rows, weights in phases]
        cumulative = [
            [sum(column) for column in zip(*own[: k + 1], strict=True)] for k in range(len(own))
        ]
        zero = [0] * cells
        ends = boundary_counts(zero, cumulative)
        self.first_rows = [sum(rows for rows, _ in phases[:k]) for k in range(len(phases))]
        self.starts = [zero, *ends[:-1]]
        self.trees = []
        for k, end in enumerate(ends):
            before = cumulative[k - 1] if k else zero
            bias = [
                (self.starts[k][c] * ROW - before[c], end[c] * ROW - cumulative[k][c])
                for c in range(cells)
            ]
            self.trees.append(Tree([end[c] - self.starts[k][c] for c in range(cells)], bias))

    @property
    def bound(self) -> int:
        return max(tree.bound for tree in self.trees)

    def locate(self, n: int) -> tuple[int, int]:
        """Cell and index of row `n` of the run."""
        k = sum(first <= n for first in self.first_rows) - 1
        cell, index = self.trees[k].locate(n - self.first_rows[k])
        return cell, self.starts[k][cell] + index

    def counts_at(self, n: int) -> list[int]:
        """Rows of every cell before row `n`; also at the end of the run."""
        k = sum(first <= n for first in self.first_rows) - 1
        within = self.trees[k].counts_at(n - self.first_rows[k])
        return [a + b for a, b in zip(self.starts[k], within, strict=True)]


def exact_targets(phases: Sequence[Phase], n: int) -> list[Fraction]:
    """What every cell should have had before row `n`, without any rounding."""
    result = [Fraction(0)] * len(phases[0][1])
    for rows, weights in phases:
        exact = [Fraction(weight) for weight in weights]
        total = sum(exact, Fraction(0))
        taken = min(rows, max(n, 0))
        result = [t + taken * weight / total for t, weight in zip(result, exact, strict=True)]
        n -= rows
    return result
