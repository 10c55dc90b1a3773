"""The program inside of a bundle: `python3 hvdlite.pyz FOLDER` installs the course there.

    cd FOLDER && source .venv/bin/activate && hvdlab doctor && jupyter lab labs/README.md

It needs no network, and nothing but Python itself.
"""

# Standard library only, and syntax that old Pythons can read: they must get as far as the message.
import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile

FACTS, ENVIRONMENT, WHEELS, DATA = "facts.json", "environment.tar.gz", "wheels", "data"
OURS = "hvdlite-bundle"  # a file in an environment that may be made anew
ROOM = 1.5  # so many times the bytes of the packages: what Python compiles comes on top

# Run by the new environment's Python: the commands of all packages, such as jupyter.
COMMANDS = """
import importlib.metadata, os, sys
from pip._vendor.distlib.scripts import ScriptMaker
maker = ScriptMaker(None, os.path.dirname(sys.executable))
maker.variants, maker.set_mode, maker.clobber = {""}, True, True
for package in importlib.metadata.distributions():
    for entry in package.entry_points:
        if entry.group == "console_scripts":
            maker.make(f"{entry.name} = {entry.value}")
"""


class UnpackError(Exception):
    """The bundle can't be installed here, and what to do."""


def main(argv=None):
    """Install; 1 where that can't be done."""
    bundle = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(
        prog="python3 " + os.path.basename(bundle), description="Install the course in a folder."
    )
    parser.add_argument("folder", help="made if need be; files of yours that are there stay")
    folder = os.path.abspath(os.path.expanduser(parser.parse_args(argv).folder))
    try:
        install(bundle, folder)
    except (UnpackError, OSError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except (zipfile.BadZipFile, EOFError, tarfile.TarError) as error:
        print(f"\nThe bundle is damaged ({error}): fetch it again.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. Start it again to go on.", file=sys.stderr)
        return 130
    return 0


def install(bundle, folder):
    """Make the environment, put the packages, the data and the course into place."""
    with zipfile.ZipFile(bundle) as packed:
        facts = json.loads(packed.read(FACTS).decode())
        check(facts, folder)
        venv = os.path.join(folder, ".venv")
        python = os.path.join(venv, "bin", "python")
        print("Installing hvdlite {} in {}".format(facts["version"], folder), flush=True)
        # Without pip, which is among the packages: Debian keeps what would bring it elsewhere.
        run([sys.executable, "-m", "venv", "--clear", "--without-pip", venv])
        open(os.path.join(venv, OURS), "w").close()
        with packed.open(ENVIRONMENT) as stream:
            unpack(stream, venv, facts["bytes"])
        for name in packed.namelist():
            if name.startswith(WHEELS + "/"):
                wheel = packed.extract(name, venv)
                run([python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", wheel])
                shutil.rmtree(os.path.join(venv, WHEELS))
            elif name.startswith(DATA + "/"):
                packed.extract(name, os.path.join(venv, "share", "hvdlite"))
    run([python, "-c", COMMANDS])
    print("Compiling", flush=True)
    library = os.path.join(venv, "lib")
    subprocess.call([python, "-m", "compileall", "-qq", "-j", "0", library])  # templates can't be
    run([python, "-m", "hvdlab", "handout", folder])
    print(f"\nNow:\n  cd {shlex.quote(folder)}\n  source .venv/bin/activate\n  hvdlab doctor")


def check(facts, folder):
    """Stop before anything is written where the packages don't fit, or there is no room."""
    wanted, machine = facts["python"], facts["machine"]
    if list(sys.version_info[:2]) != wanted:
        name = "python{}.{}".format(*wanted)
        found = shutil.which(name)
        advice = "start the bundle with {}".format(found or name + ", which is not installed here")
        raise UnpackError(f"This is Python {platform.python_version()}: {advice}.")
    if sys.platform != "linux" or platform.machine() != machine:
        here = f"{platform.system()} on {platform.machine()}"
        raise UnpackError(f"The bundle is for Linux on {machine}, and this is {here}.")
    name, version = facts["libc"]
    if platform.libc_ver()[0] != name or numbers(platform.libc_ver()[1]) < numbers(version):
        here = " ".join(platform.libc_ver())
        raise UnpackError(
            "The bundle was made with {} {}, and here is {}: make one on a machine as old as the "
            "oldest of the class.".format(name, version, here or "another C library")
        )
    venv = os.path.join(folder, ".venv")
    if os.path.exists(venv) and not os.path.exists(os.path.join(venv, OURS)):
        raise UnpackError(f"{venv} is there already, and not from a bundle: name another folder.")
    os.makedirs(folder, exist_ok=True)
    free, needed = shutil.disk_usage(folder).free, ROOM * facts["bytes"]
    if free < needed:
        raise UnpackError(
            f"{folder} has {free / 1e9:.1f} GB left, and {needed / 1e9:.1f} are needed."
        )


def numbers(version):
    """A version to compare: (2, 31) for "2.31"."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def unpack(stream, venv, total):
    """Extract the packages, with a line that says how far it is."""
    done, shown = 0, -1
    with tarfile.open(fileobj=stream, mode="r|gz") as archive:
        archive.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        for member in archive:
            path = os.path.normpath(os.path.join(venv, member.name))
            if not path.startswith(venv + os.sep) or not (member.isfile() or member.issym()):
                raise UnpackError("The bundle has a file outside of its folder: " + member.name)
            archive.extract(member, venv)
            done += member.size
            if done * 100 // total > shown:
                shown = done * 100 // total
                print(f"\rPackages: {shown} %", end="", file=sys.stderr, flush=True)
    while stream.read(1 << 20):
        pass  # to the end, where what was read is compared with its checksum
    print(file=sys.stderr)


def run(command):
    """Run a command; if it fails, stop."""
    if subprocess.call(command) != 0:
        raise UnpackError("This failed: {}\nThe reason is above.".format(" ".join(command)))


if __name__ == "__main__":
    sys.exit(main())
