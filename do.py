"""Set up and run mqdb from a checkout. Needs Python 3.11 or newer and nothing else.

    python3 do.py demo [...]    the demo, with the arguments of `mqdb demo`
    python3 do.py test [...]    every check, then every test, three at a time; or pytest with your arguments
    python3 do.py check         ruff, mypy and the import contracts
    python3 do.py run ...       any other command of mqdb: run topic list

The first call makes .venv beside this file and installs into it the versions that requirements.lock
names, by uv if it is on PATH and can, else by pip. A stamp in .venv lets later calls start at once.
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
# Most of their time tests wait: two cores have work for three processes. A file's tests stay together, for the sake of
# what they share; in which order the files come, tests/conftest.py says.
ALL_TESTS = ("--numprocesses=3", "--dist=loadfile", "--no-loadscope-reorder")
CHECKS = (
    (PYTHON, "-m", "ruff", "check"),
    (PYTHON, "-m", "ruff", "format", "--check"),
    (PYTHON, "-m", "mypy"),
    (str(PROGRAMS / "lint-imports"), "--no-logo"),
)


def main(command: str = "", *arguments: str) -> None:
    # Nothing in this file may be newer than Python 3.6, or an old Python could not even say this.
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit("do.py: mqdb needs Python 3.11 or newer, this is {}.{}".format(*sys.version_info))
    if command not in ("demo", "test", "check", "run"):
        sys.exit(__doc__)
    if command in ("demo", "run"):
        install()
        become(PYTHON, "-m", "mqdb", *(["demo"] if command == "demo" else []), *arguments)
    install("spark", "test")
    for check in CHECKS:
        what = " ".join(check).replace(str(PROGRAMS) + os.sep, "")
        if not step(what, *check):
            sys.exit("do.py: failed: " + what)
    if command == "test":
        os.chdir(str(ROOT))
        become(PYTHON, "-m", "pytest", *(arguments or ALL_TESTS))


def install(*extras: str) -> None:
    """Bring .venv to what pyproject.toml, requirements.lock and this Python ask for, unless it is there."""
    # Of another Python, or moved here from elsewhere, it cannot be repaired: its programs point to what is gone.
    place = digest(f"{sys.version} {ROOT}".encode())
    content = digest((ROOT / "pyproject.toml").read_bytes() + (ROOT / "requirements.lock").read_bytes())
    stamp = STAMP.read_text().split("\n") if STAMP.exists() else [place, "", ""]
    usable = stamp[0] == place and runs_this_python()
    if usable and stamp[1] == content and set(extras) <= set(stamp[3:]):
        return
    if not usable:
        shutil.rmtree(str(VENV), ignore_errors=True)
    wanted = sorted({*stamp[2:], *extras} - {""})
    target = f".[{','.join(wanted)}]" if wanted else "."
    if not (install_by_uv(target) or install_by_pip(target)):
        sys.exit("do.py: failed: the installation; the lines above say why")
    STAMP.write_text("\n".join([place, content, "", *wanted]))


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def install_by_uv(target: str) -> bool:
    uv = shutil.which("uv")
    if not uv:
        return False
    command = [uv, "--quiet"]
    # A user without a home directory (nobody) has no place for a cache.
    if not os.access(os.environ.get("UV_CACHE_DIR", os.path.expanduser("~")), os.W_OK):
        command += ["--no-cache"]
    made = runs_this_python() or step("creating .venv by uv", *command, "venv", "--python", sys.executable, str(VENV))
    return made and step(
        f"installing {target} into .venv by uv, once",
        *command, "pip", "install", "--python", PYTHON, "-c", "requirements.lock", "-e", target,
    )  # fmt: skip


def install_by_pip(target: str) -> bool:
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        sys.exit("do.py: this Python cannot make virtual environments; on Debian: apt-get install python3-venv")
    # Also over an existing .venv: one that uv made has no pip.
    return step("creating .venv", sys.executable, "-m", "venv", str(VENV)) and step(
        f"installing {target} into .venv by pip, once",
        PYTHON, "-m", "pip", "--quiet", "--disable-pip-version-check",
        "install", "-c", "requirements.lock", "-e", target,
    )  # fmt: skip


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
    if os.name == "nt":  # where exec gives the prompt back before the program ends
        sys.exit(subprocess.run(command).returncode)
    os.execv(command[0], command)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
