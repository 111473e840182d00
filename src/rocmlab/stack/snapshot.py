"""The files that describe a lab, as they are at one instant."""

from __future__ import annotations

from collections.abc import Callable

from rocmlab.stack import envfile, gpus, live, tls
from rocmlab.stack.settings import Settings


def take(settings: Settings) -> Callable[[], None]:
    """Read each file that `projects.write` changes; return what puts them back."""
    modes = {settings.env_path: 0o600, settings.state / "written.json": 0o600}
    modes |= {settings.project / gpus.OVERLAY: 0o644, live.path_of(settings): 0o644, tls.path_of(settings): 0o600}
    before = {path: envfile.read(path) if path.exists() else None for path in modes}

    def put_back() -> None:
        for path, text in before.items():
            if text is None:
                path.unlink(missing_ok=True)
            elif envfile.read(path) != text:
                envfile.write(path, text, modes[path])

    return put_back
