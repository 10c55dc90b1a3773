"""Workers of a DataLoader beside ranks, by each way of starting them."""

import subprocess

import mpi

LOADER = """
import sys
import torch
import hvdlite.torch as hvd


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, i):
        assert hvd.is_initialized() is (sys.argv[1] == "fork")
        return i, i * i


if __name__ == "__main__":
    hvd.init()
    sampler = torch.utils.data.DistributedSampler(Squares(), hvd.size(), hvd.rank())
    loader = torch.utils.data.DataLoader(
        Squares(), 4, sampler=sampler, num_workers=int(sys.argv[2]),
        multiprocessing_context=sys.argv[1],
    )
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen = []
        for numbers, squares in loader:
            assert torch.equal(numbers * numbers, squares)
            seen += numbers.tolist()
            hvd.allreduce(torch.ones(2))
            if epoch == 0:
                break
        every = sorted(sum(hvd.allgather_object(seen), []))
        assert epoch == 0 or every == list(range(40)), every
    print("finished", flush=True)
"""


def _loader(method: str, workers: int, tmp_path) -> None:
    program = tmp_path / "loader.py"
    program.write_text(LOADER)
    done = subprocess.run(
        mpi.command(2, *mpi.python(mpi.TORCH), str(program), method, str(workers)),
        env=mpi.environment(str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=270,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished") == 2
    # Neither ours nor MPI's about fork; on a busy machine torch may warn of a worker that it ends.
    assert not [word for word in ("hvdlite", "fork()") if word in done.stderr.lower()], done


def test_dataloader_workers_by_fork(tmp_path):
    _loader("fork", 2, tmp_path)


def test_dataloader_workers_by_forkserver(tmp_path):
    _loader("forkserver", 2, tmp_path)


def test_dataloader_workers_by_spawn(tmp_path):
    _loader("spawn", 1, tmp_path)  # each worker imports PyTorch anew
