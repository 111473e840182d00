"""How users of the hub log in."""

from __future__ import annotations

import hmac
import secrets
import sqlite3
import unicodedata
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.hub import kept
from rocmlab.hub.configuration import Access, Configuration

SETUP = "admin-password"  # the file with what an administrator signs up with
UNANSWERED = 599  # tornado's code where there is no answer
ADMINISTRATOR = "rocmlab-administrator"  # a role
# See labs and users, stop and start labs. Not "admin:users": who renames users takes their labs over.
SCOPES = ("admin-ui", "admin:servers", "list:users", "read:hub", "read:users")
OWN = ("allow_all", "allow_existing_users", "allowed_users")  # what is set here of who may log in


def configure(c: Any, found: Configuration, state: Path) -> None:  # noqa: ANN401  traitlets'
    """Set JupyterHub's authenticator, and who may log in."""
    access = found.access
    if access.authenticator == "native":  # which approves these when they sign up
        c.Authenticator.admin_users = set(access.admins)
    else:  # administrators also where all may log in: JupyterHub then knows those who have a role
        c.Authenticator.allowed_users = {*access.users, *access.admins}
        c.Authenticator.allow_existing_users = False  # who was named once may not log in for ever
    c.Authenticator.allow_all = access.is_open
    if access.authenticator == "pam":
        c.JupyterHub.authenticator_class = "pam"
        c.PAMAuthenticator.open_sessions = False  # a session would end with the hub, and labs do not
    elif access.authenticator == "oauth":
        c.JupyterHub.authenticator_class = explaining()
    else:
        import nativeauthenticator

        c.JupyterHub.authenticator_class = approving(setup_password(state))
        # After our own, so that its page.html is not used: ours has its links as well.
        c.JupyterHub.template_paths.append(str(Path(nativeauthenticator.__file__).parent / "templates"))
        c.JupyterHub.template_vars["has_sign_up"] = True
        c.NativeAuthenticator.open_signup = False
        c.NativeAuthenticator.allowed_failed_logins = 10
        c.NativeAuthenticator.seconds_before_next_try = 300
        c.NativeAuthenticator.minimum_password_length = 10
        c.NativeAuthenticator.check_common_password = True


def roles(access: Access) -> list[dict[str, Any]]:
    """Return the roles of administrators: those who are named now have them, and no one else.

    JupyterHub's own role opens every user's lab. Where an administrator can set passwords in any case it is that.
    """
    admins = sorted(access.admins)
    if access.authenticator == "native":
        return [{"name": "admin", "users": admins}]
    return [{"name": "admin", "users": []}, {"name": ADMINISTRATOR, "scopes": [*SCOPES], "users": admins}]


def block_others(c: Any, access: Access, database: Path) -> None:  # noqa: ANN401  traitlets'
    """Take all access from users who are no longer named: their logins, tokens and labs would stay.

    To be called when all configuration is loaded. Where that lets others log in as well, who they are is not known.
    """
    named = {*access.users, *access.admins}
    sections = [values for name, values in c.items() if name.endswith("Authenticator")]
    others = {name for values in sections for name in values if name.startswith("allow") and name not in OWN}
    if access.is_open or others or c.Authenticator.allow_all or set(c.Authenticator.allowed_users) != named:
        return
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as found:
        users = {name for (name,) in found.execute("select name from users")}
        c.Authenticator.blocked_users = users - named


def setup_password(state: Path) -> str:
    """Return what an administrator signs up with, made once.

    Without it whoever signs up first under such a name would be one.
    """
    return kept.secret(state / SETUP, lambda: secrets.token_urlsafe(18))


def approving(setup: str) -> type:
    """Return the authenticator with sign-up, in which an administrator's name takes the password that was printed."""
    from nativeauthenticator import NativeAuthenticator
    from tornado import web

    class Approving(NativeAuthenticator):  # type: ignore[misc]
        """Sign-up that an administrator approves."""

        def create_user(self, username: str, password: str, **details: Any) -> Any:  # noqa: ANN401
            """Add a user who signs up; None where that is refused."""
            is_admin = self.normalize_username(username) in self.admin_users
            if is_admin and not hmac.compare_digest(password.encode(), setup.encode()):
                self.log.warning("someone tried to sign up as the administrator %.64r", username)
                return None
            return super().create_user(username, password, **details)

        def delete_user(self, user: Any) -> None:  # noqa: ANN401  JupyterHub's
            """Forget a user; not while the lab starts or stops, when JupyterHub fails after the password is gone."""
            if any(spawner.pending for spawner in user.spawners.values()):
                raise web.HTTPError(409, f"the lab of {user.name} starts or stops; stop it first")
            super().delete_user(user)

    return Approving


def explaining() -> type:
    """Return the authenticator for OAuth, which says why a login fails, where its own has an Internal Server Error."""
    from oauthenticator.generic import GenericOAuthenticator
    from tornado import web
    from tornado.httpclient import HTTPClientError

    from rocmlab.hub.problems import shown

    class Explaining(GenericOAuthenticator):  # type: ignore[misc]
        """Login at a provider."""

        def user_info_to_username(self, user_info: Any) -> Any:  # noqa: ANN401
            """Return the name, before it is made lower case; one that looks like another's is not logged in."""
            name = super().user_info_to_username(user_info)
            if isinstance(name, str) and _looks_like_another(name):
                why = "the name that the provider of the login has for you becomes another user's in lower case"
                raise shown(403, RocmlabError("you are not logged in", why, "ask an administrator"))
            return name

        async def authenticate(self, handler: Any, data: Any = None, **more: Any) -> Any:  # noqa: ANN401
            """Ask the provider who came back from it."""
            found: Exception
            try:
                return await super().authenticate(handler, data, **more)
            except web.HTTPError as err:
                if err.status_code < 500:
                    raise
                found = err
            # What GenericOAuthenticator raises for an answer of another form: text, null, no name of a user.
            except (OSError, HTTPClientError, ValueError, TypeError, AttributeError) as err:
                found = err
            self.log.warning("login by OAuth", exc_info=found)
            code, why, fix = _failure(found.code if isinstance(found, HTTPClientError) else None, found)
            raise shown(code, RocmlabError("you are not logged in", why, fix)) from found

    return Explaining


def _looks_like_another(name: str) -> bool:
    """Return whether a name has letters that are others': the sign of kelvin is a k in lower case."""
    return unicodedata.normalize("NFKC", name) != name or (name.lower().isascii() and not name.isascii())


def _failure(code: int | None, err: Exception) -> tuple[int, str, str]:
    """Return the status, reason and fix of a login that failed with this code of the provider's, None without one."""
    again = "log in again in a few minutes"
    if isinstance(err, OSError) or code == UNANSWERED:
        return 502, "the provider of the login does not answer", again
    if code is None:
        why = "the provider of the login answered something else than who you are"
        return 502, why, "ask an administrator, who finds it in the hub's log"
    if code >= 500:
        return 502, f"the provider of the login has a problem ({code})", again
    why = f"the provider of the login rejected it ({code}): it has expired, or was used before"
    return 403, why, "begin again at /hub/login"
