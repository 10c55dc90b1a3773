"""`hvd.cuda_graph` where there is no GPU; test_gpu.py has it on GPUs."""


def _on_the_cpu() -> list:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    calls = []

    @hvd.cuda_graph
    def step(x: torch.Tensor) -> torch.Tensor:
        """Says what it does."""
        calls.append(len(x))
        return hvd.allreduce(x, op=hvd.Sum)

    results = [step(torch.ones(count)).tolist() for count in (2, 3, 2)]
    return [results, calls, step.__doc__]


def test_without_a_gpu_every_call_runs(ranks):
    told = ranks(2).run(_on_the_cpu)
    assert told == [[[[2.0] * 2, [2.0] * 3, [2.0] * 2], [2, 3, 2], "Says what it does."]] * 2
