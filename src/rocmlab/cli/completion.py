"""`rocmlab completion SHELL`: a script for the shell, which asks this command at each tab what may follow.

The script names the rocmlab that printed it, so that a tab never runs code of the folder one is in.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import rocmlab
from rocmlab.base.arguments import options, subcommands
from rocmlab.base.errors import RocmlabError
from rocmlab.cli.main import ALIASES, COMMANDS, command_parser
from rocmlab.cli.parsers import parser_of

FILES, FOLDERS = ":file", ":directory"  # instead of a word: the shell completes names of files
EPILOG = """bash: folder=~/.local/share/bash-completion/completions
      mkdir -p $folder
      rocmlab completion bash > $folder/rocmlab
zsh:  rocmlab completion zsh > FOLDER/_rocmlab, a folder of $fpath
fish: mkdir -p ~/.config/fish/completions
      rocmlab completion fish > ~/.config/fish/completions/rocmlab.fish

In a clone, write scripts/rocmlab for rocmlab. bash needs the package
bash-completion. The next shell has it. `make` completes its own targets."""
SCRIPTS = {
    "bash": r"""_rocmlab() {
    local word files="" current=${COMP_WORDS[COMP_CWORD]#=} unquoted=${COMP_WORDS[COMP_CWORD]#[\"\']}
    IFS="" read unquoted <<<"$unquoted" # without -r: this removes backslashes
    COMPREPLY=()
    while IFS=$'\t' read -r word _; do
        case $word in
            :file | :directory)
                compopt -o filenames # readline quotes what is found
                files=1
                mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -A "${word#:}" -- "$current")
                ;;
            *[\$\`]*) ;; # which readline does not quote in the name of a file that is not here
            ?*) COMPREPLY+=("$word") ;;
        esac
    done < <(@ROCMLAB@ completion --words "${COMP_WORDS[@]:1:COMP_CWORD-1}" "$unquoted" 2>/dev/null)
    [[ $files ]] || for word in "${!COMPREPLY[@]}"; do printf -v "COMPREPLY[$word]" %q "${COMPREPLY[word]}"; done
}
complete -F _rocmlab rocmlab
""",
    "zsh": r"""#compdef rocmlab
_rocmlab() {
    local line
    local -a found
    for line in "${(@f)$(@ROCMLAB@ completion --words "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}"; do
        case $line in
            (:file) _files ;;
            (:directory) _files -/ ;;
            (?*) found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
        esac
    done
    (( $#found )) && _describe rocmlab found
}
if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then _rocmlab "$@"; else compdef _rocmlab rocmlab; fi
""",
    "fish": r"""function __rocmlab_words
    set -l words (commandline -opc)
    set -l current (commandline -ct | string unescape)
    set -q current[1]; or set current ''
    for line in (@ROCMLAB@ completion --words $words[2..-1] $current 2>/dev/null)
        switch $line
            case :file
                __fish_complete_path $current
            case :directory
                __fish_complete_directories $current
            case '*'
                printf '%s\n' $line
        end
    end
end
complete -c rocmlab -f -a '(__rocmlab_words)'
""",
}


def main(command: str, arguments: Sequence[str]) -> int:
    """Print the script, or what may follow."""
    if list(arguments[:1]) == ["--words"]:  # not an option, as what follows may begin with -
        for found in candidates(list(arguments[1:])):
            print(f"{found.word}\t{found.help}" if found.help else found.word)
        return 0
    chosen = build_parser(command).parse_args(arguments)
    print(SCRIPTS[chosen.shell].replace("@ROCMLAB@", shlex.quote(_launcher())), end="")
    return 0


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab completion`."""
    parser = command_parser(command, epilog=EPILOG)
    parser.add_argument("shell", choices=list(SCRIPTS), help="the shell that reads the script")
    return parser


def _launcher() -> str:
    """Return the program of this rocmlab: of the clone, else that next to this interpreter, else on the PATH."""
    here = Path(rocmlab.__file__).resolve()
    for program in (here.parents[2] / "scripts/rocmlab", Path(sys.executable).with_name("rocmlab")):
        if program.is_file():
            return str(program)
    return shutil.which("rocmlab") or "rocmlab"


@dataclass(frozen=True)
class Candidate:
    """A word that may follow, with its help; or FILES or FOLDERS."""

    word: str
    help: str = ""


def candidates(words: Sequence[str]) -> list[Candidate]:
    """Return what may be the last of these words, which follow `rocmlab` and of which it may be a beginning."""
    *before, current = words or [""]
    if before[:1] in (["-v"], ["--verbose"]):
        before = before[1:]
    if not before:
        return _beginning(current, _commands())
    if ALIASES.get(before[0], before[0]) not in COMMANDS:
        return []
    line = _Line(parser_of(before[0]))
    for word in before[1:]:
        line.read(word)
    return line.candidates(current)


def _commands() -> list[Candidate]:
    listed = [Candidate(command, text) for command, (_, text) in COMMANDS.items()]
    listed += [Candidate(alias, COMMANDS[command][1]) for alias, command in ALIASES.items()]
    return [*listed, Candidate("--help"), Candidate("--version"), Candidate("--verbose")]


def _beginning(current: str, found: Iterable[Candidate]) -> list[Candidate]:
    return [each for each in found if each.word.startswith((current, ":"))]


class _Line:
    """What is known after each word of a command line."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser
        self.waiting: argparse.Action | None = None  # an option that has no value yet
        self.count = 0  # of positional arguments
        self.has_options = True  # false after --

    def read(self, word: str) -> None:
        """Take one complete word."""
        if self.waiting is not None and word == "=":  # bash separates the words of --name=value
            return
        if self.waiting is not None and not (word.startswith("-") and self.waiting.nargs == "?"):
            self.waiting = None
        elif self.has_options and word == "--":
            self.has_options = False
        elif self.has_options and word.startswith("-"):
            name, equals, _ = word.partition("=")
            action = options(self.parser).get(name)
            self.waiting = action if action is not None and action.nargs != 0 and not equals else None
        elif (chosen := subcommands(self.parser).get(word)) is not None:
            self.parser, self.count = chosen, 0
        else:
            self.count += 1

    def candidates(self, current: str) -> list[Candidate]:
        """Return what may follow."""
        if self.waiting is not None and not (current.startswith("-") and self.waiting.nargs == "?"):
            return _beginning(current.removeprefix("="), _values(self.waiting))
        name, equals, value = current.partition("=")
        if equals and name in options(self.parser):
            found = _beginning(value, _values(options(self.parser)[name]))
            return [Candidate(f"{name}={each.word}", each.help) for each in found if each.word[0] != ":"]
        listed = [Candidate(name, _text(each)) for name, each in options(self.parser).items() if name[:2] == "--"]
        if self.has_options and current.startswith("-"):
            return _beginning(current, listed)
        action = self._positional()
        return _beginning(current, _values(action) if action is not None else listed if self.has_options else [])

    def _positional(self) -> argparse.Action | None:
        """Return the positional argument that comes next; the last one may take many."""
        found = [each for each in self.parser._actions if not each.option_strings]  # argparse has no public list
        if self.count < len(found):
            return found[self.count]
        return found[-1] if found and found[-1].nargs in ("*", "+", argparse.REMAINDER) else None


def _text(action: argparse.Action) -> str:
    return " ".join((action.help or "").replace("%%", "%").split())


def _values(action: argparse.Action) -> list[Candidate]:
    """Return the values of an argument, as far as they are known: choices, or what its metavar stands for."""
    if isinstance(action, argparse._SubParsersAction):
        return [Candidate(name, each.description or "") for name, each in action.choices.items()]
    if action.choices:
        return [Candidate(str(each)) for each in action.choices]
    metavar = str(action.metavar or action.dest)
    if metavar in SOURCES:
        try:
            return SOURCES[metavar]()
        except (RocmlabError, OSError, ValueError):  # a tab is not the place for an error
            return [Candidate(FILES)]
    return [Candidate(each) for each in metavar.split("|") if each.islower()] if "|" in metavar else []


def _notebooks() -> list[Candidate]:
    """Return the lab's notebooks by name, and files."""
    from rocmlab.runs.spec import selection
    from rocmlab.stack import project_folder, settings

    folder = selection.notebooks_folder(os.environ)
    if "ROCMLAB_RUNTIME" not in os.environ and (project := project_folder.nearest()) is not None:
        folder = project / Path(settings.load(project).get("NOTEBOOKS_DIR")).expanduser()
    names = (each.notebook.stem for each in selection.find([], folder) if each.notebook is not None)
    return [*(Candidate(name) for name in names if name.isprintable()), Candidate(FILES)]


def _checks() -> list[Candidate]:
    from rocmlab.doctor import checks

    return [Candidate(each.id) for each in checks.ALL]


SOURCES: dict[str, Callable[[], list[Candidate]]] = {  # by metavar
    "DIR": lambda: [Candidate(FOLDERS)],
    "FILE": lambda: [Candidate(FILES)],
    "COMMAND": lambda: [Candidate(FILES)],
    "NOTEBOOK": _notebooks,
    "RUN": lambda: [Candidate("last"), Candidate(FOLDERS)],
    "ID": _checks,
}
