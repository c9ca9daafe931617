from __future__ import annotations

import subprocess

import pytest

from millstream.cli import main


def completed(script: str, *words: str) -> list[str]:
    """What bash offers for the last of the words."""
    line = " ".join(f'"{word}"' for word in ("millstream", *words))
    program = f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}; _millstream\n"
    program += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_commands_and_options_are_completed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out

    assert completed(script, "re") == ["rebalance"]
    assert completed(script, "state", "e") == ["export"]
    assert "--dry-run" in completed(script, "scale", "words", "--")
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("autoload -U +X bashcompinit")
