"""Which GPU a rank has, for what the Trainer has made of its arguments; none is needed for it."""

import pytest


@pytest.fixture
def host(monkeypatch):
    """Pretend to be a rank of a host with so many ranks and GPUs."""
    import torch

    from hvdlite.lightning import devices

    def pretend(ranks: int, gpus: int) -> None:
        monkeypatch.setattr(devices, "local_size", lambda: ranks)
        monkeypatch.setattr(devices, "local_rank", lambda: ranks - 1)
        monkeypatch.setattr(devices, "rank", lambda: 7)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)

    return pretend


def indices(given: list[int]) -> list[int]:
    from torch import device

    from hvdlite.lightning.devices import devices_of_host

    return [each.index for each in devices_of_host([device("cuda", i) for i in given])]


def test_gpus(host):
    host(ranks=2, gpus=4)
    assert indices([0, 1, 2, 3]) == [0, 1]  # devices="auto"
    assert indices([0]) == [0, 1]  # devices=1, as programs for Horovod say it
    assert indices([2, 3]) == [2, 3]  # devices=[2, 3]
    host(ranks=2, gpus=1)  # a launcher that gives each rank its own
    assert indices([0]) == [0, 0]


def test_too_few_gpus(host):
    host(ranks=4, gpus=2)
    with pytest.raises(ValueError, match="rank 7 is number 3 of 4 ranks on its host, which has 2"):
        indices([0, 1])


def test_cpus(host):
    host(ranks=3, gpus=0)
    from torch import device

    from hvdlite.lightning.devices import devices_of_host

    assert devices_of_host([device("cpu")]) == [device("cpu")] * 3
