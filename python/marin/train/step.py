"""One training step: gradients of the global batch, the optimizer, and what is logged of both.

The batch may be cut into M microbatches whose gradients are summed with the weight of their valid
tokens, so a microbatch of 3 tokens and one of 300 give the gradient of the joint batch; the balance
loss within rows has the weight of their rows. The next router bias is the exact quantile over all
of them, not a mean of theirs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from marin.model import Batch, LossAux, row_spec
from marin.model.router import next_bias
from marin.train.curriculum import StepPlan
from marin.train.optimizer import Hyper, group_norms
from marin.train.state import Trainee, TrainState


class StepMetrics(NamedTuple):
    """What a step reports; N layers, E experts. Counts are integers and summed on the host."""

    loss: Float[Array, ""]
    ce: Float[Array, ""]
    z_loss: Float[Array, ""]
    balance_loss: Float[Array, ""]
    tokens: Int[Array, ""]
    router_entropy: Float[Array, "N"]
    router_z: Float[Array, "N"]
    assigned: Int[Array, "N"]
    dropped_sender: Int[Array, "N"]
    dropped_receiver: Int[Array, "N"]
    tokens_lost: Int[Array, "N"]
    weight: Float[Array, "N"]
    weight_lost: Float[Array, "N"]
    load: Int[Array, "N E"]
    cell_rows: Int[Array, "cells"]
    bias_norm: Float[Array, "N"]
    grad_norm: Any
    update_norm: Any
    param_norm: Any


Constants = Float[Array, "5"]
CompiledStep = Callable[
    [TrainState, Batch, Int[Array, "B"], np.ndarray], tuple[TrainState, StepMetrics]
]


def constants_of(plan: StepPlan) -> np.ndarray:
    """The numbers of a step's plan that its computation reads: one array, one transfer."""
    rates = plan.rates
    return np.array([rates.muonh, rates.adam, rates.beta2, rates.eps, plan.qk_scale], np.float32)


def compile_step(
    trainee: Trainee, rows: int, seq_len: int, cells: int, microbatches: int = 1
) -> CompiledStep:
    """`step(state, batch, row_cells, constants) -> (state, metrics)` for one shape of batch.

    The state is donated and comes back in the same layout; `row_cells` [rows] int32 below `cells`.
    """
    whole = NamedSharding(trainee.mesh, P())

    batch = trainee.batch_layout(rows, seq_len)
    by_row = NamedSharding(trainee.mesh, row_spec(1))
    row_cells = jax.ShapeDtypeStruct((rows,), jnp.int32, sharding=by_row)
    constants = jax.ShapeDtypeStruct((5,), jnp.float32, sharding=whole)

    def step(
        state: TrainState, batch: Batch, row_cells: Int[Array, "B"], constants: Constants
    ) -> tuple[TrainState, StepMetrics]:
        hyper, qk_scale = Hyper(*constants[:4]), constants[4]
        loss, gradients, aux = batch_gradients(trainee, state, batch, qk_scale, microbatches)
        updates, optimizer = trainee.optimizer.update(
            gradients, state.optimizer, state.parameters, hyper=hyper
        )
        parameters = optax.apply_updates(state.parameters, updates)
        norms = group_norms(
            trainee.labels,
            trainee.specs,
            {"grad": gradients, "update": updates, "param": parameters},
            trainee.mesh,
        )
        metrics = StepMetrics(
            loss=loss,
            ce=aux.ce,
            z_loss=aux.z_loss,
            balance_loss=aux.balance_loss,
            tokens=aux.tokens,
            router_entropy=aux.router_entropy,
            router_z=aux.router_z,
            assigned=aux.dispatch.assigned,
            dropped_sender=aux.dispatch.dropped_sender,
            dropped_receiver=aux.dispatch.dropped_receiver,
            tokens_lost=aux.dispatch.tokens_lost,
            weight=aux.dispatch.weight,
            weight_lost=aux.dispatch.weight_lost,
            load=aux.dispatch.load,
            cell_rows=jnp.zeros(cells, jnp.int32).at[row_cells].add(1),
            bias_norm=jnp.sqrt(jnp.sum(jnp.square(aux.next_router_bias), axis=-1)),
            grad_norm=norms["grad"],
            update_norm=norms["update"],
            param_norm=norms["param"],
        )
        new = TrainState(state.step + 1, parameters, aux.next_router_bias, optimizer)
        return new, metrics

    shardings = (jax.tree.map(lambda leaf: leaf.sharding, trainee.layout), whole)
    jitted = jax.jit(step, donate_argnums=0, out_shardings=shardings)
    compiled: CompiledStep = jitted.lower(trainee.layout, batch, row_cells, constants).compile()
    return compiled


def batch_gradients(
    trainee: Trainee,
    state: TrainState,
    batch: Batch,
    qk_scale: Float[Array, ""],
    microbatches: int,
) -> tuple[Float[Array, ""], Any, LossAux]:
    """Loss, gradients and report of the joint batch.

    But for the balance loss over the global batch, which is no sum over its parts: `TrainConfig`
    refuses it in several microbatches.
    """
    several = microbatches > 1
    tokens = jnp.maximum(jnp.sum(batch.loss_mask), 1).astype(jnp.float32)
    rows = jnp.maximum(_rows_with_tokens(batch), 1)

    def weighted_loss(parameters: Any, part: Batch) -> tuple[Array, LossAux]:
        model = trainee.model(parameters, state.router_bias)
        loss, aux = model.loss(part, mesh=trainee.mesh, qk_scale=qk_scale, keep_margins=several)
        weight = aux.tokens.astype(jnp.float32) / tokens
        balance = aux.balance_loss * (_rows_with_tokens(part) / rows)
        loss = (loss - aux.balance_loss) * weight + balance
        return loss, _weigh(aux, weight)._replace(balance_loss=balance)

    gradient = jax.value_and_grad(weighted_loss, has_aux=True)
    if not several:
        (loss, aux), gradients = gradient(state.parameters, batch)
        return loss, gradients, aux

    parts = jax.tree.map(lambda x: _split_rows(x, microbatches, trainee), batch)

    def accumulate(carry: Any, part: Batch) -> tuple[Any, Array]:
        (loss, aux), gradients = gradient(state.parameters, part)
        summed = (loss, gradients, aux._replace(margins=None))
        return jax.tree.map(jnp.add, carry, summed), aux.margins

    first = jax.tree.map(lambda x: x[0], parts)
    rest = jax.tree.map(lambda x: x[1:], parts)
    (loss, aux), gradients = gradient(state.parameters, first)
    begun = (loss, gradients, aux._replace(margins=None))
    (loss, gradients, summed), margins = jax.lax.scan(accumulate, begun, rest)
    margins = jnp.concatenate([aux.margins[None], margins])
    bias = _joint_bias(margins, parts.segment_ids > 0, state.router_bias, trainee.config.top_k)
    return loss, gradients, summed._replace(next_router_bias=bias)


def _joint_bias(
    margins: Float[Array, "M N B L E"],
    valid: Bool[Array, "M B L"],
    bias: Float[Array, "N E"],
    top_k: int,
) -> Float[Array, "N E"]:
    """The next router bias of every layer over the tokens of all microbatches."""

    def joined(x: Array) -> Array:
        """[M, B, ...] as rows of the batch: B first, over which devices share them."""
        return jnp.moveaxis(x, 1, 0).reshape(-1, *x.shape[2:])

    def of_layer(layer: tuple[Array, Array]) -> Array:
        values, old = layer
        return next_bias(joined(values), joined(valid), old, top_k)

    found: Array = jax.lax.map(of_layer, (jnp.moveaxis(margins, 1, 0), bias))
    return found


def _rows_with_tokens(batch: Batch) -> Float[Array, ""]:
    return jnp.sum(jnp.any(batch.segment_ids > 0, axis=1), dtype=jnp.float32)


def _weigh(aux: LossAux, weight: Float[Array, ""]) -> LossAux:
    """Means times the weight of their microbatch; counts as they are: both can then be summed."""
    kept = {
        name: getattr(aux, name)
        for name in ("tokens", "row_tokens", "dispatch", "row_ce", "margins")
    }
    weighed = jax.tree.map(lambda x: x * weight, aux._replace(margins=None))
    whole: LossAux = weighed._replace(**kept)
    return whole


def _split_rows(x: Array, microbatches: int, trainee: Trainee) -> Array:
    """[B, ...] as [M, B / M, ...] such that every device keeps its rows."""
    parts = jnp.moveaxis(x.reshape(-1, microbatches, *x.shape[1:]), 1, 0)
    spec = row_spec(x.ndim)
    apart = NamedSharding(trainee.mesh, P(None, *spec))
    laid_out: Array = jax.lax.with_sharding_constraint(parts, apart)
    return laid_out
