"""The adapter for PyTorch, with a stand-in of the few names that it uses."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from support.packing import make_schedule, write_store

from marin.packing import plan
from marin.stream import Stream


@pytest.fixture
def torch(monkeypatch):
    """`torch` with arrays for tensors; `torch.worker` says which worker of a loader asks."""
    modules = {name: ModuleType(name) for name in ("torch", "torch.utils", "torch.utils.data")}
    fake = modules["torch"]
    fake.worker = None
    fake.Tensor = np.ndarray
    fake.from_numpy = lambda array: array
    modules["torch.utils.data"].IterableDataset = type(
        "IterableDataset", (), {"__class_getitem__": classmethod(lambda cls, item: cls)}
    )
    modules["torch.utils.data"].get_worker_info = lambda: fake.worker
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "marin.stream.pytorch", raising=False)
    yield fake
    sys.modules.pop("marin.stream.pytorch", None)


@pytest.fixture
def planned(tmp_path):
    schedule = make_schedule({"c00q0": 1.0}, [(0.0, 16, 8), (0.5, 32, 4)], 1024)
    return plan(
        write_store(tmp_path, {"c00q0": [3, 9, 14, 40, 1, 1, 6, 16, 5]}), schedule, tmp_path
    )


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_in_turn_give_the_batches_in_their_order(torch, planned, workers):
    from marin.stream.pytorch import BatchDataset

    stream = Stream(planned)
    cursor = stream.cursor(1)
    parts = []
    for number in range(workers):
        torch.worker = None
        if workers > 1:
            torch.worker = SimpleNamespace(id=number, num_workers=workers)
        parts.append(list(BatchDataset(planned, cursor=cursor)))
    in_turn = [parts[at % workers][at // workers] for at in range(len(stream) - 1)]
    assert sum(map(len, parts)) == len(in_turn)
    for step, found in enumerate(in_turn, start=1):
        expected = stream.batch(step)
        for name, tensor in found.items():
            assert np.array_equal(tensor, getattr(expected, name)), name
    assert in_turn[0]["cells"].dtype == np.int32


def test_readers_of_the_dataset_share_each_batch(torch, planned):
    from marin.stream.pytorch import BatchDataset

    halves = [BatchDataset(planned, reader=(number, 2), batch_size=2) for number in range(2)]
    for whole, *parts in zip(Stream(planned, batch_size=2).iterate(), *halves, strict=True):
        joined = np.concatenate([part["tokens"] for part in parts])
        assert np.array_equal(joined, whole.tokens)
