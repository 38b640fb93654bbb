"""Losses on the held-out documents of a run's store, by domain.

Documents of one domain are laid end to end into rows of one length, the run's first if not told
otherwise, each token seeing its own document alone; nothing is predicted across documents or rows.
Every evaluation uses the weights and the pending router bias that the next step of training will
use, once with the transport that the run trains with and once with one that drops nothing.

Dropping depends on what is in a batch. One has as many rows as a microbatch of such rows, of all
domains mixed, in an order that is the same in every evaluation and every run. The last one is
filled with rows of the first, whose losses do not count again but whose drops do: drops are those
of whole batches. Where a run holds out fewer rows than a batch has, they are those of a batch with
the same rows several times, somewhat more than of as many different ones.

    eval/loss_micro     nats per token over all domains together
    eval/loss_macro     the mean of the domains' losses
    eval/loss/c07       one domain
    eval/bits_per_byte  over all domains, where the tokenizer is at hand
    eval/dropless/...   the same without drops
"""

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from marin.dispatch import PooledWave, Ragged, Ring, Transport
from marin.engine import read_manifest
from marin.errors import MarinError
from marin.model import Batch
from marin.stream import Batch as HostBatch
from marin.train.compiler import StepCompiler
from marin.train.config import TrainConfig
from marin.train.curriculum import Curriculum
from marin.train.data import lay_out
from marin.train.processes import Processes
from marin.train.source import Source
from marin.train.state import Trainee, TrainState

_FOLDER = "validation"
_SEED = 0  # of the rows' order
_BYTE = re.compile("<0x[0-9A-F]{2}>")  # a byte of what the vocabulary has no token for


@dataclass(frozen=True)
class HeldOut:
    """Rows of held-out documents. R rows of L tokens; `domain` [R] indexes `names`.

    `token_bytes` [vocab] are the bytes of text behind each token, None where they are not known.
    """

    names: tuple[str, ...]
    domain: np.ndarray
    tokens: np.ndarray
    segment_ids: np.ndarray
    positions: np.ndarray
    loss_mask: np.ndarray
    token_bytes: np.ndarray | None


class Measured(NamedTuple):
    """Nats and predicted tokens of the rows of a batch, assignments and drops of its N layers.

    Counts are summed on the host, as those of a step: all layers together can pass 32 bits.
    """

    nats: Float[Array, "B"]
    predicted: Int[Array, "B"]
    assigned: Int[Array, "N"]
    dropped: Int[Array, "N"]


class Evaluator:
    """Evaluates a run after `steps`; the computations of both transports may still compile."""

    def __init__(
        self,
        held_out: HeldOut,
        trainee: Trainee,
        rows: int,
        steps: frozenset[int],
        compiled: Mapping[str, "Future[Any]"],
        reader: tuple[int, int],
    ) -> None:
        self.steps = steps
        self._held_out = held_out
        self._compiled = compiled
        index, readers = reader
        count = len(held_out.domain)
        order = np.random.default_rng(_SEED).permutation(count)
        self._domain = held_out.domain[order]
        whole = np.resize(order, -(-count // rows) * rows)  # begins again where it ends
        own = whole.reshape(-1, readers, rows // readers)[:, index]
        self._batches = [
            lay_out(_batch(held_out, part), trainee.mesh, readers).batch for part in own
        ]

    def measure(self, state: TrainState, qk_scale: float) -> dict[str, float]:
        """The values of one evaluation under their names."""
        found: dict[str, float] = {}
        for prefix, future in self._compiled.items():
            compiled = future.result()
            # One at a time: virtual devices with several programs ahead may wait for ever.
            parts: list[Measured] = [
                jax.device_get(
                    compiled(state.parameters, state.router_bias, batch, np.float32(qk_scale))
                )
                for batch in self._batches
            ]
            found |= self._summarize(prefix, parts)
        if len(self._compiled) == 1:  # the run's own transport drops nothing
            found |= {
                name.replace("eval/", "eval/dropless/", 1): value
                for name, value in found.items()
                if "drop" not in name
            }
        return found

    def _summarize(self, prefix: str, parts: list[Measured]) -> dict[str, float]:
        held_out = self._held_out
        count = len(self._domain)
        nats = np.concatenate([part.nats for part in parts])[:count].astype(np.float64)
        predicted = np.concatenate([part.predicted for part in parts])[:count]
        by_domain = np.bincount(self._domain, nats, len(held_out.names))
        tokens = np.bincount(self._domain, predicted, len(held_out.names))
        losses = by_domain / np.maximum(tokens, 1)
        values = {
            "loss_micro": float(by_domain.sum() / tokens.sum()),
            "loss_macro": float(losses[tokens > 0].mean()),
        }
        if held_out.token_bytes is not None:
            targets = held_out.tokens[:, 1:][held_out.loss_mask[:, :-1]]
            values["bits_per_byte"] = float(
                by_domain.sum() / log(2) / max(held_out.token_bytes[targets].sum(), 1)
            )
        values |= {
            f"loss/{name}": float(loss)
            for name, loss, seen in zip(held_out.names, losses, tokens, strict=True)
            if seen
        }
        if prefix == "eval/":
            assigned, dropped = (
                sum(int(counts.sum(dtype=np.int64)) for counts in column)
                for column in zip(*((part.assigned, part.dropped) for part in parts), strict=True)
            )
            values["drop_fraction"] = dropped / max(assigned, 1)
        return {prefix + name: value for name, value in values.items()}


def evaluation_of(
    config: TrainConfig,
    source: Source,
    trainee: Trainee,
    curriculum: Curriculum,
    compiler: StepCompiler,
    processes: Processes,
) -> Evaluator | None:
    """The run's evaluations, compiled after its steps; None if it has none."""
    settings = config.evaluation
    if not settings.times:
        return None
    rows, seq_len = evaluation_shape(config, curriculum)
    tokenizer = settings.tokenizer or find_tokenizer(
        source.store.resolve().parent, source.tokenizer
    )
    held_out = held_out_rows(source.store, seq_len, settings.tokens, tokenizer)
    if held_out is None:
        return None
    compiled = {
        prefix: compiler.later(partial(compile_evaluation, trainee, rows, seq_len, transport))
        for prefix, transport in transports(trainee).items()
    }
    steps = evaluation_steps(curriculum, settings.times)
    return Evaluator(held_out, trainee, rows, steps, compiled, processes.reader(config.mesh))


def evaluation_shape(config: TrainConfig, curriculum: Curriculum) -> tuple[int, int]:
    """Rows that are evaluated at a time, and their length: those of a microbatch, the first of the
    run whose batch this mesh can cut.

    Raises:
      MarinError: the run has no rows of that length, or none of their batches can be cut.
    """
    wanted = config.evaluation.seq_len or curriculum.segments[0].seq_len
    sizes = [s.batch_size for s in curriculum.segments if s.seq_len == wanted]
    if not sizes:
        lengths = sorted({segment.seq_len for segment in curriculum.segments})
        raise MarinError(f"evaluation.seq_len = {wanted}: the run has rows of {lengths}; name one")
    for size in sizes:
        if size % config.parts == 0:
            return size // config.microbatches, wanted
    raise MarinError(
        f"evaluation: batches of {sizes[0]} rows of {wanted} cannot be cut into {config.parts} "
        "equal parts; change the mesh, or evaluate with other rows of the run "
        "(evaluation.seq_len) or not at all (evaluation.times=0)"
    )


def find_tokenizer(folder: Path, wanted: str) -> Path | None:
    """The `tokenizer.json` of a directory in `folder` that has this content hash."""
    for found in sorted(folder.glob("*/tokenizer.json")):
        try:
            summary = read_manifest(found.parent).summary
        except MarinError:
            continue
        if summary.get("hash") == wanted:
            return found
    return None


def evaluation_steps(curriculum: Curriculum, times: int) -> frozenset[int]:
    """After how many steps a run is evaluated: `times` counts, evenly, the end included."""
    return frozenset(-(-curriculum.steps * k // times) for k in range(1, times + 1))


def held_out_rows(store: Path, seq_len: int, limit: int, tokenizer: Path | None) -> HeldOut | None:
    """The held-out documents of a store as rows, at most about `limit` tokens of every domain, in
    the store's order; None if it holds out none.

    Reads no further than to where every domain has its tokens.
    """
    documents = _held_out_documents(store, limit)
    if not documents:
        return None
    names = tuple(sorted(documents))
    parts = []
    for index, name in enumerate(names):
        rows = _rows(documents[name], seq_len, limit)
        parts.append((np.full(len(rows[0]), index), *rows))
    domain, tokens, segments, positions, mask = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    sizes = None if tokenizer is None else token_bytes(tokenizer)
    return HeldOut(names, domain, tokens, segments, positions, mask, sizes)


def token_bytes(tokenizer: Path) -> np.ndarray:
    """Bytes of text behind each token of a `tokenizer.json`, int64 [vocab]; 0 for special ones.

    Raises:
      MarinError: the file is no tokenizer.
    """
    from tokenizers import Tokenizer

    try:
        loaded = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the library raises nothing more special
        raise MarinError(
            f"{tokenizer}: {error}; evaluation.tokenizer is to be a tokenizer.json"
        ) from None
    special = {token.content for token in loaded.get_added_tokens_decoder().values()}
    decoder = repr(loaded.decoder)
    sizes = np.zeros(loaded.get_vocab_size(), np.int64)
    for token, index in loaded.get_vocab().items():
        if token in special:
            continue
        if "ByteLevel" in decoder:  # a vocabulary that writes one character for each byte
            sizes[index] = len(token)
        elif "ByteFallback" in decoder and _BYTE.fullmatch(token):
            sizes[index] = 1
        else:
            sizes[index] = len(token.replace("▁", " ").encode())
    return sizes


def compile_evaluation(
    trainee: Trainee, rows: int, seq_len: int, transport: Transport | None
) -> Any:
    """`evaluate(parameters, router_bias, batch, qk_scale) -> Measured` for one shape of batch."""
    whole = NamedSharding(trainee.mesh, P())

    def evaluate(parameters: Any, bias: Array, batch: Batch, qk_scale: Array) -> Measured:
        model = trainee.model(parameters, bias)
        _, aux = model.loss(batch, mesh=trainee.mesh, qk_scale=qk_scale, transport=transport)
        dropped = aux.dispatch.dropped_sender + aux.dispatch.dropped_receiver
        return Measured(aux.row_ce, aux.row_tokens, aux.dispatch.assigned, dropped)

    layout = trainee.layout
    batch = trainee.batch_layout(rows, seq_len)
    scale = jax.ShapeDtypeStruct((), jnp.float32, sharding=whole)
    jitted = jax.jit(evaluate, out_shardings=whole)
    return jitted.lower(layout.parameters, layout.router_bias, batch, scale).compile()


def transports(trainee: Trainee) -> dict[str, Transport | None]:
    """Names' prefixes and the transports to evaluate with: the run's own (None), and a dropless."""
    own = trainee.config.make_transport()
    if isinstance(own, PooledWave | Ragged):
        return {"eval/": None, "eval/dropless/": Ring()}
    return {"eval/": None}


def _held_out_documents(store: Path, limit: int) -> dict[str, pa.Array]:
    """The first held-out documents of every domain, at least `limit` tokens where it has them.

    Domains are those of the store's cells, and what else is met on the way.
    """
    found: dict[str, list[pa.Array]] = {}
    lacking = {path.name.partition("q")[0]: limit for path in store.glob("c*q*")}
    for batch in _held_out_batches(store):
        cells = batch["cell"].dictionary_encode()
        of_cell = np.array([cell.partition("q")[0] for cell in cells.dictionary.to_pylist()])
        domains = of_cell[cells.indices.to_numpy()]
        for name in np.unique(of_cell).tolist():
            if lacking.setdefault(name, limit) > 0:
                chosen = batch["tokens"].filter(pa.array(domains == name))
                found.setdefault(name, []).append(chosen)
                lacking[name] -= len(chosen.flatten())
        if max(lacking.values()) <= 0:
            break
    return {name: pa.concat_arrays(chunks) for name, chunks in found.items()}


def _held_out_batches(store: Path) -> Iterator[pa.RecordBatch]:
    """Record batches of the held-out documents that are not empty, in the store's order."""
    for path in sorted((store / _FOLDER).glob("part-*.arrow")):
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                if len(batch):
                    yield batch


def _rows(documents: pa.Array, seq_len: int, limit: int) -> tuple[np.ndarray, ...]:
    """Tokens, segments, positions and loss mask [R, L] of documents laid end to end."""
    lengths = documents.value_lengths().to_numpy().astype(np.int64)
    kept = max(1, int(np.searchsorted(np.cumsum(lengths), limit, side="right")))
    lengths = lengths[:kept]
    count = int(lengths.sum())
    rows = max(1, -(-count // seq_len))
    document = np.repeat(np.arange(kept), lengths)
    start = np.repeat(np.cumsum(lengths) - lengths, lengths)
    index = np.arange(count)
    row_start = index - index % seq_len

    def laid(values: np.ndarray) -> np.ndarray:
        whole = np.zeros(rows * seq_len, np.int32)
        whole[:count] = values
        return whole.reshape(rows, seq_len)

    segments = laid(document - document[row_start] + 1 if count else document)
    mask = np.zeros(segments.shape, bool)
    mask[:, :-1] = (segments[:, :-1] == segments[:, 1:]) & (segments[:, :-1] > 0)
    tokens = laid(documents.flatten().to_numpy()[:count])
    return tokens, segments, laid(index - np.maximum(start, row_start)), mask


def _batch(held_out: HeldOut, rows: np.ndarray) -> HostBatch:
    """The batch of the rows with these numbers."""
    return HostBatch(
        step=0,
        row_ids=rows,
        tokens=held_out.tokens[rows],
        segment_ids=held_out.segment_ids[rows],
        positions=held_out.positions[rows],
        loss_mask=held_out.loss_mask[rows],
        cells=np.zeros(len(rows), np.uint16),
    )
