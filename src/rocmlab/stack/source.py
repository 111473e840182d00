"""The source of a project: a digest of it, its commit, what a newer one changes, and moving to another one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.stack import process

FETCH_TIMEOUT_SECONDS = 120.0
MOVE_TIMEOUT_SECONDS = 1800.0  # a slow disk must not end git in the middle
NAMES_AT_ONCE = 500
NOTEBOOKS = "notebooks/"
MAX_LINES = 40  # of changes that are shown
LETTERS = 12  # of a commit
DIRTY = "-dirty"  # after a commit: the files are not exactly those of it
# Not the notebooks: Compose binds the folder itself, and saving one there must not rebuild the image.
IMAGE_SOURCES = ("docker", "requirements", "src", "pyproject.toml", "README.md", "LICENSE")
NATIVE_SOURCES = ("requirements", "pyproject.toml", "src/rocmlab/lab")
IGNORED = {"__pycache__", ".ipynb_checkpoints", "monitoring"}


@dataclass(frozen=True)
class Saved:
    """A notebook of the user's that was in the way of another version's."""

    path: Path
    copy: Path


def git(
    project: Path, *arguments: str, timeout_seconds: float = 60, variables: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run git in a project, without prompts; `variables` are added to its environment."""
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", **(variables or {})}
    return process.capture(["git", "-C", str(project), *arguments], env=environment, timeout_seconds=timeout_seconds)


def head(project: Path) -> str:
    """Return the commit that is checked out; empty where there is no git repository of the project's own."""
    code, top = git(project, "rev-parse", "--show-toplevel")
    if code or Path(top.strip()).resolve() != project.resolve():
        return ""
    code, found = git(project, "rev-parse", "HEAD")
    return found.strip() if code == 0 else ""


def described(project: Path, commit: str) -> tuple[str, str]:
    """Return a commit in short, with its tag if it has one, and its date; empty strings where it is not known."""
    if not commit:
        return "", ""
    code, date = git(project, "show", "--no-patch", "--format=%cs", commit)
    if code:
        return commit[:LETTERS], ""
    code, name = git(project, "describe", "--tags", "--exact-match", commit)
    return (f"{name.strip()} ({commit[:LETTERS]})" if code == 0 else commit[:LETTERS]), date.strip()


def before_pull(project: Path) -> str:
    """Return the commit that was checked out before the present one, if the present one is its descendant."""
    code, found = git(project, "rev-parse", "--verify", "--quiet", "HEAD@{1}")
    return found.strip() if code == 0 and is_ancestor(project, found.strip(), "HEAD") else ""


def is_ancestor(project: Path, older: str, newer: str) -> bool:
    """Return whether one commit can be reached from another one."""
    return git(project, "merge-base", "--is-ancestor", older, newer)[0] == 0


def fetched(project: Path) -> tuple[str, str]:
    """Fetch; return the newest commit upstream, and why it is the present one if it is; an error if they diverged."""
    present = head(project)
    code, upstream = git(project, "rev-parse", "--abbrev-ref", "--symbolic-full-name", "@{upstream}")
    if code:
        return present, "this branch does not track a remote branch"
    remote = upstream.strip().partition("/")[0]
    code, output = git(project, "fetch", "--quiet", remote, timeout_seconds=FETCH_TIMEOUT_SECONDS)
    if code:
        last = (output.strip().splitlines() or ["no answer"])[-1]
        return present, f"{remote} could not be reached: {last}"
    target = git(project, "rev-parse", "@{upstream}")[1].strip()
    if is_ancestor(project, target, present):
        return present, f"{upstream.strip()} has nothing newer"
    if not is_ancestor(project, present, target):
        raise RocmlabError(
            f"this branch and {upstream.strip()} have diverged",
            "only a fast-forward is made automatically",
            f"git rebase {upstream.strip()} (or git merge), then make upgrade, which uses what is checked out",
        )
    return target, ""


def changed(project: Path) -> list[str]:
    """Return the tracked files with local changes."""
    code, output = git(project, "status", "--porcelain", "-z", "--untracked-files=no")
    return [entry[3:] for entry in output.split("\0") if len(entry) > 3] if code == 0 else []


def revision(project: Path) -> str:
    """Return the commit that is checked out, with `-dirty` where tracked files differ from it; empty: not known."""
    commit = head(project)
    return f"{commit}{DIRTY}" if commit and changed(project) else commit


def check_clean(project: Path) -> None:
    """Raise RocmlabError if a tracked file that is not a notebook has local changes."""
    files = [name for name in changed(project) if not name.startswith(NOTEBOOKS)]
    if files:
        raise RocmlabError(
            f"{len(files)} tracked file{'s have' if len(files) > 1 else ' has'} local changes",
            "\n".join(files[:20]),
            "commit them (git commit), or stash them (git stash), then retry",
        )


def changes(project: Path, older: str, newer: str) -> list[str]:
    """Return what is new from one commit to another: lines of the change log, else titles of commits."""
    span = f"{older}..{newer}"
    code, difference = git(project, "diff", "--unified=0", span, "--", "CHANGELOG.md")
    lines = [line[1:] for line in difference.splitlines() if line.startswith("+- ")] if code == 0 else []
    if not lines:
        code, titles = git(project, "log", "--format=- %s", span)
        lines = titles.splitlines() if code == 0 else []
    more = [f"… and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else []
    return lines[:MAX_LINES] + more


def move(project: Path, commit: str) -> list[Saved]:
    """Move the checkout to a commit; nothing that git does not track, and no notebook of the user's, is lost.

    Return copies of the notebooks with local changes that the other version has as well. An error moves nothing:
    what git has written by then is put back, or the error says that this failed.
    """
    code, listed = git(project, "diff", "--name-status", "--no-renames", "-z", "HEAD", commit)
    fields = listed.split("\0")
    touched = dict(zip(fields[1::2], fields[0::2], strict=False)) if code == 0 else {}
    in_the_way = [name for name, kind in touched.items() if kind == "A" and os.path.lexists(project / name)]
    if in_the_way:
        raise RocmlabError(
            "files that git does not track are in the way of the other version's",
            "\n".join(in_the_way[:20]),
            f"move them: mv {in_the_way[0]} {in_the_way[0]}.mine",
        )
    present = head(project)
    saved = [_save(project / name) for name in changed(project) if name in touched and (project / name).is_file()]
    try:
        for each in saved:
            git(project, "checkout", "--quiet", "HEAD", "--", str(each.path.relative_to(project)))
        code, output = git(project, *_way(project), commit, timeout_seconds=MOVE_TIMEOUT_SECONDS)
    except BaseException:
        if head(project) == present:
            _stay(project, commit, touched, saved)
        raise
    if code:
        _stay(project, commit, touched, saved)
        last = output.strip()[-400:]
        raise RocmlabError(f"git could not check out {commit[:LETTERS]}", last, "git status")
    return saved


def _stay(project: Path, commit: str, touched: Mapping[str, str], saved: list[Saved]) -> None:
    """Put back what git has written before it stopped in the middle, as on a full disk, and the user's notebooks.

    Raises:
        RocmlabError: some files stay as the other version has them.
    """
    try:
        for name, kind in touched.items():
            if kind == "A":  # nothing was there before
                (project / name).unlink(missing_ok=True)
        names = [name for name in changed(project) if name in touched and not _was_saved(project, commit, name)]
        for first in range(0, len(names), NAMES_AT_ONCE):
            words = ("checkout", "--quiet", "HEAD", "--", *names[first : first + NAMES_AT_ONCE])
            literal = {"GIT_LITERAL_PATHSPECS": "1"}
            code, output = git(project, *words, timeout_seconds=MOVE_TIMEOUT_SECONDS, variables=literal)
            if code:
                raise RocmlabError(
                    "files of the checkout are partly those of another version",
                    f"git stopped in the middle, and could not put them back: {output.strip()[-400:]}",
                    "free some space; then git status, and git restore the files that it names",
                )
    finally:
        put_back(saved)


def _was_saved(project: Path, commit: str, name: str) -> bool:
    """Return whether a file is a notebook that its user saved meanwhile: whole, and not what git has written."""
    if not name.startswith(NOTEBOOKS) or git(project, "diff", "--quiet", commit, "--", name)[0] == 0:
        return False
    try:
        json.loads((project / name).read_bytes())
    except (OSError, ValueError):
        return False
    return True


def _way(project: Path) -> tuple[str, ...]:
    """Return git's command to move: the branch itself, unless it has commits that are nowhere else."""
    is_published = is_ancestor(project, "HEAD", "@{upstream}")
    return ("reset", "--quiet", "--keep") if is_published else ("checkout", "--quiet", "--detach")


def _save(path: Path) -> Saved:
    stamp = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H%M%SZ")
    copy = path.with_name(f"{path.stem}-yours-{stamp}{path.suffix}")
    shutil.copy2(path, copy)
    return Saved(path, copy)


def put_back(saved: list[Saved]) -> None:
    """Put notebooks of the user's back in their places, after the checkout has gone back."""
    for each in saved:
        os.replace(each.copy, each.path)


def digest(project: Path, sources: Iterable[str], facts: Mapping[str, str]) -> str:
    """Return the SHA-256 (hex) of these files and folders, by content, and of named facts."""
    found = hashlib.sha256()
    for name, value in sorted(facts.items()):
        found.update(f"{name}={value}\0".encode())
    for path in sorted(_files(project, sources)):
        executable = "x" if path.stat().st_mode & 0o100 else "-"
        found.update(f"{path.relative_to(project)}\0{executable}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def _files(project: Path, sources: Iterable[str]) -> Iterator[Path]:
    for source in sources:
        start = project / source
        if start.is_file():
            yield start
        for path in start.rglob("*") if start.is_dir() else ():
            is_ignored = IGNORED & set(path.relative_to(project).parts) or path.suffix in (".pyc", ".in", ".whl")
            if path.is_file() and not is_ignored:
                yield path
