"""``millstream completion``: a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from millstream.cli.commands import EXIT_CODES

_BASH = """\
_millstream() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" path="" at
    for ((at = 1; at < COMP_CWORD; at++)); do
        case "${{COMP_WORDS[at]}}" in
            -*) ;;
            *) case "$path ${{COMP_WORDS[at]}}" in
{paths}
            esac ;;
        esac
    done
    local words=""
    case "$path" in
{words}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    [ ${{#COMPREPLY[@]}} -gt 0 ] || COMPREPLY=($(compgen -f -- "$word"))
}}
complete -F _millstream millstream
"""


def add_to(commands: Any, root: argparse.ArgumentParser) -> None:
    """Add ``completion``; ``root`` is the parser of all commands."""
    about = "print a script that completes commands and options in bash or zsh"
    parser = commands.add_parser(
        "completion",
        help=about,
        description=f"{about.capitalize()}.",
        epilog=f'example: eval "$(millstream completion bash)"\n\n{EXIT_CODES}',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh"))
    parser.set_defaults(run=lambda options: _print(options.shell, root))


def _print(shell: str, root: argparse.ArgumentParser) -> int:
    if shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    print(script(root), end="")
    return 0


def script(root: argparse.ArgumentParser) -> str:
    """The script for bash."""
    known = list(_commands(root, ""))
    paths = "\n".join(f'                "{path}") path="{path}" ;;' for path, _ in known if path)
    words = "\n".join(f'        "{path}") words="{" ".join(words)}" ;;' for path, words in known)
    return _BASH.format(paths=paths, words=words)


def _commands(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, list[str]]]:
    """Each command, by its words, and what may follow it."""
    words = [name for action in parser._actions for name in action.option_strings]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words += action.choices
            for name, below in action.choices.items():
                yield from _commands(below, f"{path} {name}")
    yield path, words
