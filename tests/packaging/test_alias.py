"""`horovod` is hvdlite under another name, however the program was started.

How it starts is tried with Python itself; the rest in forks of processes with a framework.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import mpi
import pytest

import hvdlite

# Beside this Python, whether or not the environment is on the PATH.
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
PROGRAM = """
import sys
import horovod.torch as hvd
import hvdlite.torch
assert hvd is hvdlite.torch and sys.modules["horovod.torch"] is hvdlite.torch
assert hvd.__name__ == hvd.__spec__.name == "hvdlite.torch"
hvd.init()
print(f"rank {hvd.rank()} of {hvd.size()}", flush=True)
hvd.shutdown()
"""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def python(*arguments: str, cwd: Path | None = None) -> str:
    return run(sys.executable, *arguments, cwd=cwd)


@pytest.fixture
def with_framework(tmp_path):
    """Runs a program in a process of its own that has imported PyTorch or TensorFlow already."""

    def start(framework: str, code: str) -> None:
        file = tmp_path / "program.py"
        file.write_text(textwrap.dedent(code))
        run(*mpi.python({"torch": mpi.TORCH}.get(framework, mpi.KERAS)), str(file))

    return start


def program(tmp_path: Path) -> Path:
    path = tmp_path / "student.py"
    path.write_text(PROGRAM)
    return path


def test_started_as_a_file(tmp_path):
    assert python(str(program(tmp_path))) == "rank 0 of 1\n"


def test_started_as_a_module(tmp_path):
    program(tmp_path)
    assert python("-m", "student", cwd=tmp_path) == "rank 0 of 1\n"


def test_started_by_horovodrun(tmp_path):
    told = run(HOROVODRUN, "-np", "2", sys.executable, program(tmp_path))
    assert "rank 0 of 2" in told and "rank 1 of 2" in told


def test_started_in_a_notebook():
    import nbformat  # not at the top: it takes seconds
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(PROGRAM)])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    assert [out["text"] for out in notebook.cells[0].outputs] == ["rank 0 of 1\n"]


def test_full_names_after_plain_import(with_framework):
    code = """
        import horovod
        horovod.torch.init()
        assert horovod.torch.size() == 1
        import hvdlite
        from packaging.version import Version
        assert Version(horovod.__version__) >= Version("0.28.1")
        assert horovod.__version__.endswith(f"+hvdlite.{hvdlite.__version__}")
        assert tuple(map(int, horovod.__version__.split(".")[:3])) == (0, 28, 1)
        """
    with_framework("torch", code)


def test_modules_below_a_framework_are_the_same_too(with_framework):
    code = """
        import horovod.torch.compression
        from horovod.torch.compression import Compression
        import hvdlite.torch.compression
        assert horovod.torch.compression is hvdlite.torch.compression
        assert Compression is hvdlite.torch.Compression
        """
    with_framework("torch", code)


def test_horovod_common():
    code = """
        import pickle
        from horovod.common.exceptions import HorovodInternalError
        from horovod.common.process_sets import ProcessSet
        import horovod.common.basics
        import hvdlite.exceptions
        assert HorovodInternalError is hvdlite.exceptions.HorovodInternalError
        assert pickle.loads(pickle.dumps(HorovodInternalError)) is HorovodInternalError
        """
    python("-c", textwrap.dedent(code))


BASICS = "init shutdown rank size local_rank local_size is_initialized ProcessSet add_process_set"
OPS = "Average Sum Adasum Min Max Product allreduce allgather broadcast alltoall reducescatter join"
OBJECTS = "broadcast_object allgather_object"
HELPERS = """gpu_available num_rank_is_power_2 handle_average_backwards_compatibility
get_average_backwards_compatibility_fun"""
TORCH = f"""
{BASICS} {OPS} barrier poll synchronize allreduce_async allreduce_async_ broadcast_async_
allreduce_ broadcast_ grouped_allreduce allgather_async sparse_allreduce_async
"""
ELASTIC = "run State ObjectState"
KERAS = "CommitStateCallback UpdateBatchStateCallback UpdateEpochStateCallback KerasState"
NAMES = {
    "horovod.torch.mpi_ops": f"{TORCH} {HELPERS}",
    "horovod.torch.functions": f"broadcast_parameters broadcast_optimizer_state {OBJECTS}",
    "horovod.torch.optimizer": "DistributedOptimizer _DistributedOptimizer",
    "horovod.torch.compression": "Compression",
    "horovod.torch.sync_batch_norm": "SyncBatchNorm",
    "horovod.torch.elastic": f"{ELASTIC} TorchState ElasticSampler",
    "horovod.torch.elastic.state": "TorchState StateHandler get_handler_registry",
    "horovod.torch.elastic.sampler": "ElasticSampler",
    "horovod.tensorflow": "gpu_available vars_to_refs refs_to_vars _executing_eagerly",
    "horovod.tensorflow.mpi_ops": f"{BASICS} {OPS} {HELPERS} _allreduce size_op rank_op",
    "horovod.tensorflow.functions": f"broadcast_variables {OBJECTS} broadcast_object_fn",
    "horovod.tensorflow.compression": "Compression",
    "horovod.tensorflow.sync_batch_norm": "SyncBatchNormalization",
    "horovod.tensorflow.elastic": f"{ELASTIC} TensorFlowState TensorFlowKerasState",
    "horovod.tensorflow.keras.callbacks": "BroadcastGlobalVariablesCallback BestModelCheckpoint",
    "horovod.tensorflow.keras.elastic": f"{ELASTIC} {KERAS}",
    "horovod.keras.callbacks": "BroadcastGlobalVariablesCallback MetricAverageCallback",
    "horovod.keras.elastic": f"{ELASTIC} {KERAS}",
    "horovod.common.elastic": f"{ELASTIC} run_fn notification_manager",
    "horovod.common.exceptions": "HorovodInternalError HostsUpdatedInterrupt",
    "horovod.common.process_sets": "ProcessSet global_process_set",
    "horovod.common.util": """extension_available gpu_available check_extension env mpi_built
        gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built num_rank_is_power_2
        is_iterable split_list is_version_greater_equal_than check_installed_version _cache
        get_average_backwards_compatibility_fun""",
    "horovod.common.basics": "HorovodBasics",
    "horovod.tensorflow.util": "_executing_eagerly _cache _make_subgraph vars_to_refs refs_to_vars",
    "horovod.runner": "run",
    "horovod.runner.util.threads": "in_thread execute_function_multithreaded",
    "horovod.runner.common.util.env": "get_env_rank_and_size",
    "horovod.run.runner": "run run_commandline",
    "horovod.runner.launch": "run_commandline",
}


def code_for_names(part: str) -> str:
    names = {name: text.split() for name, text in NAMES.items() if name.split(".")[1] == part}
    code = f"""
        import importlib
        for name, wanted in {names!r}.items():
            module = importlib.import_module(name)
            assert not [each for each in wanted if not hasattr(module, each)], name
        """
    return textwrap.dedent(code)


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "keras"])
def test_horovods_modules_have_its_names(framework, with_framework):
    with_framework(framework, code_for_names(framework))


@pytest.mark.parametrize("part", ["common", "run", "runner"])
def test_horovods_modules_without_a_framework_have_its_names(part):
    python("-c", code_for_names(part))


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_mpi_ops_needs_no_import(framework, with_framework):
    code = f"import horovod.{framework} as hvd; assert hvd.mpi_ops.Sum is hvd.Sum"
    with_framework(framework, code)


def test_the_reduction_that_programs_take_from_mpi_ops(with_framework):
    code = """
        import tensorflow as tf
        from horovod.tensorflow.mpi_ops import _allreduce, init
        init()
        assert _allreduce(tf.ones(2), name="x").numpy().tolist() == [1, 1]
        """
    with_framework("tensorflow", code)


def test_the_runner_is_a_function_and_a_program():
    assert python("-c", "from horovod.runner import run; print(run(lambda: 7, np=2))") == "[7, 7]\n"
    assert python("-m", "horovod.runner.launch", "--version") == hvdlite.__version__ + "\n"
    code = "import horovod, horovod.run.runner; print(horovod.run(lambda: 7, np=2))"
    assert python("-c", code) == "[7, 7]\n"  # of old versions, whose horovod.run is a module


def test_the_older_average_and_the_op_that_took_its_place(with_framework):
    code = """
        import horovod.torch as hvd
        from horovod.torch.mpi_ops import handle_average_backwards_compatibility as op_of
        assert op_of(None, None) == op_of(None, True) == hvd.Average
        assert op_of(None, False) == hvd.Sum and op_of(hvd.Max, None) == hvd.Max
        try:
            op_of(hvd.Sum, True)
        except ValueError as error:
            assert "one of the two" in str(error)
        else:
            raise AssertionError
        """
    with_framework("torch", code)


def test_libraries_find_the_basics_and_the_wrapped_optimizers(with_framework):
    code = """
        import torch
        import horovod.torch as hvd
        from horovod.common.basics import HorovodBasics
        from horovod.torch.optimizer import _DistributedOptimizer
        basics = HorovodBasics("a", "mpi_lib")
        basics.init()
        assert basics.rank() == 0 and basics.size() == 1 and basics.Sum == hvd.Sum
        assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: [0]}
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
        assert not isinstance(optimizer, _DistributedOptimizer)
        assert isinstance(hvd.DistributedOptimizer(optimizer), _DistributedOptimizer)
        """
    with_framework("torch", code)


def test_the_helpers_of_horovod_common_util():
    from horovod.common.util import (
        env,
        is_iterable,
        is_version_greater_equal_than,
        num_rank_is_power_2,
        split_list,
    )

    assert split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]
    assert [n for n in range(9) if num_rank_is_power_2(n)] == [1, 2, 4, 8]
    assert is_iterable("x") and not is_iterable(3)
    assert is_version_greater_equal_than("2.10.0", "2.9.1")
    assert not is_version_greater_equal_than("2.9.0rc1", "2.9.0")
    with pytest.raises(ValueError, match="three parts"):
        is_version_greater_equal_than("2.9.0", "2.9")
    with env(HOME=None, NEW="1"):
        assert os.environ["NEW"] == "1" and "HOME" not in os.environ
    assert "NEW" not in os.environ and "HOME" in os.environ


def test_work_in_threads_and_the_rank_by_the_launchers_word(monkeypatch):
    from horovod.runner.common.util.env import get_env_rank_and_size
    from horovod.runner.util.threads import execute_function_multithreaded, in_thread

    assert execute_function_multithreaded(pow, [[2, 3], [3, 2]]) == {0: 8, 1: 9}
    found = []
    in_thread(found.append, (1,)).join(60)
    assert found == [1]
    with pytest.raises(ValueError, match="tuple"):
        in_thread(print, 1)
    for name in [each for each in os.environ if each.startswith(("OMPI_", "PMI", "SLURM_"))]:
        monkeypatch.delenv(name)
    assert get_env_rank_and_size() == (0, 1)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    assert get_env_rank_and_size() == (3, 4)


INSTEAD = {
    "mxnet": "horovod.torch",
    "spark.run": "horovodrun",
    "ray": "horovod.run(function, np=N)",
    "runner.gloo_run": "horovodrun",
}
UNKNOWN = dict.fromkeys(["torch.nothing", "common.nothing"], "it serves horovod.torch")


@pytest.mark.parametrize("name, instead", [*INSTEAD.items(), *UNKNOWN.items()])
def test_what_is_not_served_comes_with_what_to_use(name, instead):
    part = name.removesuffix(".run")
    with pytest.raises(ModuleNotFoundError) as caught:
        __import__(f"horovod.{name}")
    assert f"does not serve horovod.{part}" in str(caught.value) and instead in str(caught.value)


def test_unknown_attribute_is_named():
    import horovod

    with pytest.raises(AttributeError, match="'horovod' .* has no attribute 'init'; .* horovod.t"):
        horovod.init()


@pytest.mark.parametrize("name", ["hvdlite", "horovod", "horovod.common.exceptions"])
def test_import_starts_no_mpi_and_no_framework(name):
    heavy = {"mpi4py.MPI", "torch", "tensorflow", "keras", "cupy"}
    assert python("-c", f"import {name}, sys; print({heavy!r} & set(sys.modules))") == "set()\n"
