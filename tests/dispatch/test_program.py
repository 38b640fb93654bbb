"""What the compiled programs of the transports do: their collectives, their bytes, their memory."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from marin.dispatch import PooledWave, Ragged, Ring, Transport, moe
from marin.dispatch.exchange import payload_bytes
from marin.dispatch.pooled_wave import exchange_bytes, pool_rows

DEVICES, TOKENS, K, WIDTH, INNER = 8, 512, 2, 128, 16  # tokens per device
ITEM = {"u32": 4, "u16": 2, "s32": 4, "f32": 4, "bf16": 2, "pred": 1}


def compiled(bench, transport: Transport, dtype=jnp.float32, *, devices=DEVICES, gradient=False):
    """The layer, or the gradient of a loss on it in everything that can have one."""
    mesh = bench.mesh_of(expert=devices)
    x, routing, experts = bench.problem(
        tokens=devices * TOKENS, k=K, num_experts=devices, w=WIDTH, m=INNER, dtype=dtype
    )
    x, routing = jax.device_put((x, routing), NamedSharding(mesh, P(("replica", "data", "expert"))))
    experts = jax.device_put(experts, NamedSharding(mesh, P("expert")))

    def layer(x, routing, experts):
        return moe(x, routing, experts, transport=transport, mesh=mesh)

    def loss(x, weights, experts, routing):
        y, _ = layer(x, routing._replace(weights=weights), experts)
        return jnp.sum(jnp.sin(y.astype(jnp.float32)))

    if gradient:
        jitted = jax.jit(jax.grad(loss, argnums=(0, 1, 2)), compiler_options=bench.quick)
        return jitted.lower(x, routing.weights, experts, routing).compile()
    jitted = jax.jit(layer, compiler_options=bench.quick)
    return jitted.lower(x, routing, experts).compile()


def training_memory(bench, transport: Transport, devices: int = DEVICES) -> float:
    """Temporary memory of forward and backward pass, in A rows."""
    program = compiled(bench, transport, devices=devices, gradient=True)
    temporary: int = program.memory_analysis().temp_size_in_bytes
    return temporary / (TOKENS * K * WIDTH * 4)


def collectives(program: str, kind: str) -> list[int]:
    """Bytes of each collective of a kind in one device's program, in any spelling of its shape."""
    plain = re.sub(r"/\*.*?\*/", "", program)
    sizes = []
    for shapes in re.findall(rf"= ([^=\n]*) {kind}(?:-start)?\(", plain):
        total = 0
        for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", shapes):
            count = 1
            for dim in filter(None, dims.split(",")):
                count *= int(dim)
            total += ITEM[dtype] * count
        sizes.append(total)
    return sizes


@pytest.mark.parametrize(
    ("transport", "dtype"),
    [
        (PooledWave(waves=3), jnp.float32),
        (PooledWave(waves=2, transport_capacity=1.5, stripe=True), jnp.bfloat16),
    ],
    ids=["three waves", "two waves striped bfloat16"],
)
def test_a_wave_is_two_all_to_alls_whose_bytes_are_those_of_the_formula(
    bench, transport: PooledWave, dtype
) -> None:
    program = compiled(bench, transport, dtype).as_text()
    moved = collectives(program, "all-to-all")
    assert len(moved) == 2 * transport.waves + 2 * transport.stripe
    assert sum(moved) == exchange_bytes(transport, TOKENS, K, DEVICES, WIDTH, dtype)
    for other in ("all-gather", "collective-permute", "reduce-scatter"):
        assert collectives(program, other) == []
    # Statistics alone are reduced: a few numbers, never rows.
    assert sum(collectives(program, "all-reduce")) <= 4 * (4 + DEVICES + 2)


def test_temporary_memory_falls_with_the_number_of_waves(bench) -> None:
    def temporary(waves: int) -> int:
        memory = compiled(bench, PooledWave(waves=waves)).memory_analysis()
        return memory.temp_size_in_bytes

    two, six = temporary(2), temporary(6)
    # Two waves of two are in memory, then two of six: two thirds of every buffer of the pool's size
    # are saved, and the payloads out and in alone are two of them.
    pool = DEVICES * pool_rows(PooledWave(waves=6), TOKENS * K, DEVICES)
    assert two - six > pool * payload_bytes((WIDTH, jnp.float32), (2, jnp.int32))


def test_training_memory_of_pooled_wave_holds_every_wave(bench) -> None:
    pool = DEVICES * pool_rows(PooledWave(waves=6), TOKENS * K, DEVICES) / (TOKENS * K)
    kept = pool * (2 * WIDTH + 2 * INNER) / WIDTH
    assert all(training_memory(bench, PooledWave(waves=waves)) > kept for waves in (2, 6))


def test_training_memory_of_ragged_falls_with_its_chunks(bench) -> None:
    few, many = (training_memory(bench, Ragged(chunks=chunks)) for chunks in (4, 16))
    # Buffers of a chunk hold n A / chunks rows; inputs, outputs and their gradients stay.
    assert many < 0.4 * few


def test_training_memory_of_ring_does_not_grow_with_its_devices(bench) -> None:
    two, eight = (training_memory(bench, Ring(), devices) for devices in (2, 8))
    assert eight < 1.1 * two
