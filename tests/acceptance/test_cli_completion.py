"""Completion in each shell: the shell loads the script, and then gets its words from the command."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.variants import usually

#: What each shell does when somebody has typed `mqdb topic c` or `mqdb topic create --q` and presses Tab.
TYPED = ("mqdb topic c", "mqdb topic create --q")
ASK = {
    "bash": """
        eval "$(mqdb --show-completion)"
        COMP_WORDS=({typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _mqdb_completion mqdb
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """,
    "zsh": """
        autoload -Uz compinit && compinit -u -D
        eval "$(mqdb --show-completion)"
        _arguments() {{ print -l -- "$@" }}
        _describe() {{ print -l -- "${{(@P)2}}" "${{(@P)3}}" 2>/dev/null; print -l -- $completions }}
        words=({typed}); CURRENT=${{#words}}
        _mqdb_completion
    """,
    "fish": """
        mqdb --show-completion | source
        complete --do-complete '{typed}'
    """,
}


@pytest.mark.parametrize("shell", usually("bash", of=ASK))
def test_a_shell_completes_commands_and_options(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        assert not os.environ.get("MQDB_REQUIRE_SHELLS"), f"{shell} is not installed"
        pytest.skip(f"{shell} is not installed")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "HOME": str(tmp_path)}
    found = []
    for typed in TYPED:
        script = ASK[shell].format(typed=typed)
        done = subprocess.run([program, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
        found.append(done.stdout)

    assert "create" in found[0]
    assert "delete" not in found[0]
    assert "--queues" in found[1]
