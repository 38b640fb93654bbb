"""What goes in and out of every transport."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Int


class Routing(NamedTuple):
    """Where each token goes.

    experts [T, K] int32 in [0, E); weights [T, K] float32, non-negative, what an expert's output is
    multiplied by; valid [T]: padding is False, takes no capacity, is counted nowhere and gets zero;
    source [T] int32, if given: what the statistics by source count, such as the token's data cell.
    """

    experts: Int[Array, "T K"]
    weights: Float[Array, "T K"]
    valid: Bool[Array, " T"]
    source: Int[Array, " T"] | None = None


class Experts(NamedTuple):
    """SwiGLU weights of all experts: `(silu(x gate) * (x up)) down`."""

    gate: Float[Array, "E w m"]
    up: Float[Array, "E w m"]
    down: Float[Array, "E m w"]


class Stats(NamedTuple):
    """Exact counts over the whole mesh (int32, weights float32); no gradient flows through them.

    assigned: assignments of valid tokens. dropped_sender, dropped_receiver: those for which the
    pool at the sender, or the receiver, had no place. tokens_lost: valid tokens of which every
    assignment was dropped. weight, weight_lost: combine weight of all and of the dropped
    assignments. load [E]: assignments per expert before dropping. device_rows [groups, n]: rows
    that each device computed, by expert-parallel group and rank. source_assigned, source_dropped
    [S]: assignments and drops by the routing's source; S is 0 where no sources were asked for.
    """

    assigned: Int[Array, ""]
    dropped_sender: Int[Array, ""]
    dropped_receiver: Int[Array, ""]
    tokens_lost: Int[Array, ""]
    weight: Float[Array, ""]
    weight_lost: Float[Array, ""]
    load: Int[Array, " E"]
    device_rows: Int[Array, "groups n"]
    source_assigned: Int[Array, " S"]
    source_dropped: Int[Array, " S"]
