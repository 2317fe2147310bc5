"""Set up and run mqdb from a checkout. This script needs only Python 3.11 or newer.

    python3 do.py demo [...]    the demo, with the arguments of `mqdb demo`
    python3 do.py test [...]    every check, then the tests in five processes; or pytest with your arguments
    python3 do.py test --all    the long tests too: fault runs with ten seeds, 10,000 cases of each fuzz
    python3 do.py check         ruff, mypy, the import contracts and the prose
    python3 do.py bench [...]   the benchmarks of mqdb, with reference values: bench --help
    python3 do.py peers [...]   mqdb beside other brokers on this machine: peers --help
    python3 do.py drill [...]   clients while a cluster of Patroni fails over: drill --help
    python3 do.py docs [...]    the site, into build/site; docs serve shows it while you write
    python3 do.py screenshots   the pictures of the dashboard in docs/images, by Chromium; all of them with a directory
    python3 do.py run ...       any other command of mqdb: run topic list
    python3 do.py lock          new lock files for the requirements in pyproject.toml; needs uv
    python3 do.py release       the archives of this version and their hashes, into dist/: release --help

The first call makes .venv beside this file, and installs the packages in requirements.lock (for tests, in
requirements-test.lock) with these versions and hashes. It uses uv if uv is on PATH and works, else pip.
A stamp in .venv lets later calls start at once.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "do.stamp"
PROGRAMS = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = str(PROGRAMS / "python")
#: The lock files, and the extras that each is for.
LOCKS = {
    "requirements.lock": ("server", "embedded"),
    "requirements-test.lock": (
        *("server", "embedded", "spark", "compression", "grpc", "metrics", "otel", "reload", "docs", "test"),
    ),
    "requirements-contrib.lock": ("server", "embedded", "contrib"),
}
BUILD_BACKEND = "hatchling>=1.27"
# Tests wait most of the time, so two cores are enough for five processes. The tests of a file run in one process,
# because they share fixtures; tests/conftest.py sets the order of the files. A process that crashes ends the run:
# if a new process replaced it, the run sometimes hung at its end.
ALL_TESTS = ("--numprocesses=5", "--max-worker-restart=0", "--dist=loadfile", "--no-loadscope-reorder")
# `--all` adds the tests marked `long`, more cases of generated tests, and the coverage of the code that runs in the
# processes of pytest. Processes that the tests start are not counted.
EVERYTHING = (*ALL_TESTS, "-m", "", "--timeout=3600", "--cov", "--cov-report=term:skip-covered")
MORE_CASES = {"MQDB_FUZZ_CASES": "10000", "MQDB_FAULT_RUNS": "10"}
CHECKS = (
    (PYTHON, "-m", "ruff", "check"),
    (PYTHON, "-m", "ruff", "format", "--check"),
    (PYTHON, "-m", "mypy"),
    (str(PROGRAMS / "lint-imports"), "--no-logo"),
    (PYTHON, "-m", "checks.prose"),
)


def main(command: str = "", *arguments: str) -> None:
    # This file must be valid in Python 3.6, so that an old Python can print this message.
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit("do.py: mqdb needs Python 3.11 or newer, this is {}.{}".format(*sys.version_info))
    known = ("demo", "test", "check", "bench", "peers", "drill", "docs", "screenshots", "run", "lock", "release")
    if command not in known:
        sys.exit(__doc__)
    if command == "lock":
        lock()
        return
    if command in ("demo", "run"):
        install()
        become(PYTHON, "-m", "mqdb", *(["demo"] if command == "demo" else []), *arguments)
    if command == "drill":
        install("spark", "test")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        become(PYTHON, "-m", "tests.drill", *arguments)
    if command == "screenshots":
        install("spark", "test")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "client")])
        become(PYTHON, "-m", "website.screenshots", *arguments)
    if command == "release":
        install("spark", "test")
        os.chdir(str(ROOT))
        become(PYTHON, "-m", "checks.release", *arguments)
    if command == "docs":
        install("docs", "spark")
        os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")
        become(PYTHON, "-m", "mkdocs", *(arguments or ("build",)))
    if command in ("bench", "peers"):
        install(*(("spark",) if command == "bench" else ()))
        paths = [str(ROOT), str(ROOT / "client"), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        become(PYTHON, "-m", "benchmarks." + command, *arguments)
    install("spark", "test")
    # Else each of the processes would compile all tests again, and each process that the tests start all of mqdb.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compiling = None
    if command == "test" and arguments in ((), ("--all",)):
        # Compiles while mypy leaves a core idle. Else all processes would begin by compiling the same files.
        collect = (PYTHON, "-m", "pytest", "--collect-only", "-qq")
        compiling = subprocess.Popen(collect, cwd=str(ROOT), stdout=subprocess.DEVNULL)
    for check in CHECKS:
        what = " ".join(check).replace(str(PROGRAMS) + os.sep, "")
        if not step(what, *check):
            sys.exit("do.py: failed: " + what)
    if command == "test":
        os.chdir(str(ROOT))
        if arguments == ("--all",):
            os.environ.update({name: os.environ.get(name, value) for name, value in MORE_CASES.items()})
            arguments = EVERYTHING
        if compiling:
            compiling.wait()
        become(PYTHON, "-m", "pytest", *(arguments or ALL_TESTS))


def install(*extras: str) -> None:
    """Make or update .venv for pyproject.toml, the lock files and this Python, unless it is up to date."""
    # A .venv of another Python or another directory cannot be repaired: its programs point to missing files.
    place = digest(f"{sys.version} {ROOT}".encode())
    content = digest(b"".join((ROOT / name).read_bytes() for name in ("pyproject.toml", *LOCKS)))
    stamp = STAMP.read_text().split("\n") if STAMP.exists() else [place, "", ""]
    usable = stamp[0] == place and runs_this_python()
    if usable and stamp[1] == content and set(extras) <= set(stamp[3:]):
        return
    if not usable:
        shutil.rmtree(str(VENV), ignore_errors=True)
    wanted = sorted({*stamp[2:], *extras} - {""})
    locked = "requirements-test.lock" if wanted else "requirements.lock"
    if not (install_by_uv(locked) or install_by_pip(locked)):
        sys.exit("do.py: failed: the installation; the lines above say why")
    STAMP.write_text("\n".join([place, content, "", *wanted]))


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def lock() -> None:
    """Write the lock files. Locked versions that still fit are kept; remove a file to get the newest versions."""
    uv = shutil.which("uv")
    if not uv:
        sys.exit("do.py: uv is not on PATH, and only it makes a lock for all platforms")
    before = {name: (ROOT / name).read_text() if (ROOT / name).exists() else "" for name in LOCKS}
    for name, extras in LOCKS.items():
        command = [uv, "--quiet", "pip", "compile", "pyproject.toml", "-", "--universal", "--python-version", "3.11"]
        command += ["--generate-hashes", "--no-annotate", "--no-header", "--output-file", name]
        # The other lock files contain all packages of the first, in the same versions.
        command += ["--constraint", "requirements.lock"] if extras else []
        for extra in extras:
            command += ["--extra", extra]
        print("do.py: " + name, flush=True)
        # Without build isolation the project needs its build backend, which its dependencies do not name.
        done = subprocess.run(command, cwd=str(ROOT), input=BUILD_BACKEND.encode())
        if done.returncode != 0:
            sys.exit("do.py: failed: " + name)
        text = (ROOT / name).read_text()
        (ROOT / name).write_text(text if text.startswith("#") else "# Made by `python3 do.py lock`.\n" + text)
        if before[name] != (ROOT / name).read_text():
            print("do.py: changed " + name, flush=True)


def install_by_uv(locked: str) -> bool:
    uv = shutil.which("uv")
    if not uv:
        return False
    command = [uv, "--quiet"]
    # A user without a home directory (nobody) has no place for a cache.
    if not os.access(os.environ.get("UV_CACHE_DIR", os.path.expanduser("~")), os.W_OK):
        command += ["--no-cache"]
    made = runs_this_python() or step("creating .venv by uv", *command, "venv", "--python", sys.executable, str(VENV))
    return made and install_with(
        f"{locked} into .venv by uv", *command, "pip", "install", "--python", PYTHON, locked=locked
    )


def install_by_pip(locked: str) -> bool:
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        sys.exit("do.py: this Python cannot make virtual environments; on Debian: apt-get install python3-venv")
    # Also over an existing .venv, because a .venv that uv made has no pip.
    return step("creating .venv", sys.executable, "-m", "venv", str(VENV)) and install_with(
        f"{locked} into .venv by pip",
        *(PYTHON, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"),
        locked=locked,
    )


def install_with(what: str, *install: str, locked: str) -> bool:
    """Install the locked packages, then the project by itself, because pip would require a hash for the project."""
    return step(f"installing {what}, once", *install, "--require-hashes", "-r", locked) and step(
        "installing mqdb", *install, "--no-deps", "--no-build-isolation", "-e", "."
    )


def runs_this_python() -> bool:
    try:
        probe = subprocess.run([PYTHON, "-c", "import sys; print(sys.version)"], stdout=subprocess.PIPE)
    except OSError:
        return False
    return probe.stdout.decode().strip() == sys.version


def step(what: str, *command: str) -> bool:
    print("do.py: " + what, flush=True)
    return subprocess.run(command, cwd=str(ROOT)).returncode == 0


def become(*command: str) -> None:
    if os.name == "nt":  # on Windows, exec returns to the prompt before the program ends
        sys.exit(subprocess.run(command).returncode)
    os.execv(command[0], command)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
