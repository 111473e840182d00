"""The lab for other machines (BIND): the certificate that it serves, and whether it is this lab that serves it.

The lab's own port stays plain HTTP on the loopback; a second one, TLS_PORT at the address BIND, speaks TLS alone. Key
and certificates are one file, `.rocmlab/tls/server.pem` (0600), which the server reads again when it changes: your
own, or a certificate that openssl made, which is kept for each set of names.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import os
import re
import shutil
import socket
import ssl
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from rocmlab.base import addresses, hosts
from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.stack import envfile, process
from rocmlab.stack.settings import Settings, port_of

VALID_DAYS, RENEW_DAYS = 800, 60  # Apple's browsers reject more than 825
MIN_DAYS = 14  # fewer are worth a warning
ANSWER_SECONDS = 10.0
CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.S)
REQUEST = """\
[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
CN = rocmlab
[extensions]
subjectAltName = {names}
basicConstraints = critical, CA:false
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
"""


def address(settings: Settings) -> str:
    """Return the address of BIND, empty where the lab is on the loopback alone; an error if it is not an address."""
    text = settings.get("BIND")
    try:
        return str(ipaddress.ip_address(text)) if text else ""
    except ValueError:
        why = "it is a numeric address of this host, or 0.0.0.0 (IPv6: ::) for all of them"
        raise RocmlabError(f"BIND={text} is not an IP address", why, "make up BIND=0.0.0.0") from None


def values(settings: Settings, host_name: str = "") -> dict[str, str]:
    """Return what the lab and Compose need to serve TLS, nothing without BIND.

    Raises:
        RocmlabError: a setting for it is wrong.
    """
    bind = address(settings)
    if not bind:
        return {}
    if port_of(settings, "TLS_PORT") == port_of(settings):
        why = "the lab's own port, on the loopback, speaks no TLS"
        raise RocmlabError("TLS_PORT and PORT are the same", why, f"make up TLS_PORT={server_port(settings) + 1}")
    _own(settings)
    name = (host_name or socket.gethostname()).lower()
    names = [name, f"{name}.local"] if hosts.NAME.fullmatch(name) and "." not in name else [name]
    return {hosts.BOUND: ",".join([bind, *(each for each in names if hosts.NAME.fullmatch(each))])}


def server_port(settings: Settings) -> int:
    """Return the port that speaks TLS."""
    return port_of(settings, "TLS_PORT")


def check_free(settings: Settings, before: Mapping[str, str], *, as_root: bool) -> None:
    """Raise RocmlabError unless something can listen at BIND and TLS_PORT, or the lab of the last `make up` does.

    Args:
        settings: of the lab.
        before: what `.env` was, empty where no lab runs.
        as_root: an engine listens, which may take the ports below 1024.
    """
    bind, port = address(settings), server_port(settings)
    if not bind:
        return
    if (err := addresses.refusal(bind, 0)) is not None:
        fix = "`ip -brief address` lists them; all of them: make up BIND=0.0.0.0"
        raise RocmlabError(f"BIND={bind} is not an address of this host", str(err), fix) from err
    if before.get("BIND") == settings.get("BIND") and before.get("TLS_PORT", "8443") == str(port):
        return
    err = addresses.refusal(bind, port)
    if err is not None and (err.errno != errno.EACCES or not as_root):
        fix = f"make up TLS_PORT={port + 1 if port > 1024 else 8443}"
        raise RocmlabError(f"nothing can listen on TLS_PORT={port} at {bind}", str(err), fix) from err


def path_of(settings: Settings) -> Path:
    """Return the file with key and certificates that the lab serves."""
    return settings.state.resolve() / "tls" / hosts.TLS_FILE


def prepare(settings: Settings, derived: Mapping[str, str], *, is_rootless: bool = False) -> None:
    """Write the file that the lab serves, if it changes; without BIND remove it. The lab reads it by itself.

    Args:
        settings: of the lab.
        derived: of them; NB_UID where the lab runs in a container.
        is_rootless: whoever calls this is the lab's user inside, whatever NB_UID says.

    Raises:
        RocmlabError: there is no certificate, or the lab's user could not read its key.
    """
    path, own = path_of(settings), os.geteuid()
    if not address(settings):
        path.unlink(missing_ok=True)
        return
    uid = derived.get("NB_UID", "")
    if own and uid not in ("", str(own)) and not is_rootless:
        why = f"NB_UID={uid}, by default the owner of NOTEBOOKS_DIR; the key is for uid {own}, who calls this, alone"
        raise RocmlabError("the lab's user could not read the key for BIND", why, f"make up NB_UID={own}; or BIND=")
    text = _own(settings) or _generated(settings, derived[hosts.BOUND].split(","))
    if envfile.read(path) != text:
        envfile.write(path, text, mode=0o600)
    if path.parent.stat().st_uid == own:
        path.parent.chmod(0o755)  # a container's user enters it; the file is for that user alone
    if not own and uid.isdecimal():
        os.chown(path, int(uid), -1)


def clean(settings: Settings) -> list[Path]:
    """Remove the copy of key and certificate that the lab serves; return the files of those that were made, kept."""
    path_of(settings).unlink(missing_ok=True)
    return sorted(settings.state.glob("certificate-*.pem"))


def _own(settings: Settings) -> str:
    """Return key and certificates of TLS_KEY and TLS_CERT, empty where neither is set."""
    given = {name: settings.get(name) for name in ("TLS_KEY", "TLS_CERT")}
    if not any(given.values()):
        return ""
    if missing := [name for name, value in given.items() if not value]:
        raise RocmlabError(
            f"{missing[0]} is not set", "a certificate and its key are needed", f"make up {missing[0]}=…"
        )
    key, certificate = (settings.path(value) for value in given.values())
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
        return f"{key.read_text().strip()}\n{certificate.read_text().strip()}\n"
    except (OSError, ValueError) as err:  # one of SSLError as well; an encrypted key has no place for its password
        what = f"TLS_CERT={given['TLS_CERT']} and TLS_KEY={given['TLS_KEY']} cannot be used"
        why = f"{err}: both are PEM files, the key is the certificate's and has no password"
        raise RocmlabError(what, why, "make up TLS_CERT=chain.pem TLS_KEY=key.pem; or both empty: one is made") from err


def _generated(settings: Settings, names: list[str]) -> str:
    """Return key and certificate for these names, made now unless one of before is valid for long enough."""
    digest = hashlib.sha256(",".join(names).encode()).hexdigest()[:8]
    path = settings.state / f"certificate-{digest}.pem"
    if path.exists() and RENEW_DAYS < (remaining_days(path) or 0) <= VALID_DAYS:  # more: the clock was ahead then
        return envfile.read(path)
    if not shutil.which("openssl"):
        fix = "install openssl, or give your own: make up TLS_CERT=chain.pem TLS_KEY=key.pem"
        raise RocmlabError("no certificate for BIND could be made", "the program openssl is not installed", fix)
    listed = [("IP" if addresses.is_address(name) else "DNS") + f":{name}" for name in [*names, *_reached_at(names[0])]]
    with tempfile.TemporaryDirectory() as folder:
        request, key, certificate = (Path(folder) / name for name in ("request", "key", "certificate"))
        request.write_text(REQUEST.format(names=", ".join(dict.fromkeys(listed))), encoding="utf-8")
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-sha256", "-days", str(VALID_DAYS), "-config", str(request), "-keyout", str(key)]
        code, output = process.capture([*command, "-out", str(certificate)])
        if code:
            fix = "give your own: make up TLS_CERT=chain.pem TLS_KEY=key.pem"
            raise RocmlabError("no certificate for BIND could be made", output.strip()[-400:], fix)
        text = key.read_text() + certificate.read_text()
    envfile.write(path, text, mode=0o600)
    return text


def _reached_at(bind: str) -> list[str]:
    """Return an address under which other machines reach this host, none where that is not known."""
    if not ipaddress.ip_address(bind).is_unspecified:
        return [bind]
    try:
        return [addresses.own(addresses.OUTSIDE_IPV6 if ":" in bind else addresses.OUTSIDE)]
    except OSError:
        return []


def remaining_days(path: Path) -> float | None:
    """Return for how many days a file's first certificate is valid, below 0 once it has expired; None: unknown."""
    code, text = process.capture(["openssl", "x509", "-noout", "-enddate", "-in", str(path)])
    try:
        return None if code else (ssl.cert_time_to_seconds(text.strip().partition("=")[2]) - time.time()) / 86400
    except ValueError:
        return None


def expiry_problem(path: Path) -> Problem | None:
    """Return what is wrong where a certificate has expired or soon will; None also where it is not known."""
    days = remaining_days(path)
    if days is None or days >= MIN_DAYS:
        return None
    what = "the lab's certificate has expired" if days < 0 else f"the lab's certificate ends in {days:.0f} days"
    return Problem(what, "browsers reject it after that", "renew TLS_CERT if it is yours; then: make up")


def names_of(path: Path) -> list[str]:
    """Return the names and addresses that a certificate is for; empty where it is not known."""
    code, text = process.capture(["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", str(path)])
    return [] if code else re.findall(r"(?:DNS|IP Address):([^\s,]+)", text)


def own_problems(settings: Settings, bound: str) -> list[Problem]:
    """Return what is wrong with a user's own certificate: it expires, or is for no name that the lab answers under.

    Args:
        settings: of the lab.
        bound: the address and the names of this host at which the lab is reached, with commas; empty without BIND.
    """
    if not bound or not settings.get("TLS_CERT"):
        return []
    path = settings.path(settings.get("TLS_CERT"))
    found = [problem] if (problem := expiry_problem(path)) else []
    names = names_of(path)
    answered = [*bound.split(","), *hosts.parse(settings.get(hosts.SETTING)), *_reached_at(bound.split(",")[0])]
    if names and not any(_covers(name, each) for name in names for each in answered):
        why = f"the lab answers under {', '.join(dict.fromkeys(answered))}: browsers reject one, or the lab the other"
        fix = f"make up {hosts.SETTING}={','.join(name.replace('*', 'lab', 1) for name in names)}"
        found.append(Problem(f"TLS_CERT is for {', '.join(names)}", why, fix))
    return found


def _covers(name: str, host_name: str) -> bool:
    """Return whether a name of a certificate, which may begin with `*.`, is for this host."""
    name, host_name = name.lower(), host_name.lower()
    if addresses.is_address(host_name):
        return addresses.is_address(name) and ipaddress.ip_address(name) == ipaddress.ip_address(host_name)
    is_wild = name.startswith("*.") and host_name.partition(".")[2] == name[2:]
    return name == host_name or is_wild


def fingerprint(text: str) -> str:
    """Return the SHA-256 of the first certificate in PEM, as browsers show it; empty where there is none."""
    found = CERTIFICATE.search(text)
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(found[0])).hexdigest().upper() if found else ""
    return ":".join(digest[start : start + 2] for start in range(0, len(digest), 2))


def host(settings: Settings) -> str:
    """Return the address to print for other machines."""
    bind = address(settings)
    found = next(iter(_reached_at(bind)), socket.gethostname())
    return f"[{found}]" if ":" in found else found


def served(settings: Settings, timeout_seconds: float = ANSWER_SECONDS) -> str:
    """Return the fingerprint of what the lab serves to other machines, once it does with the key of this project.

    Who answers with another certificate is not this lab. Nothing secret is sent.

    Raises:
        RocmlabError: no one answers there, or someone else.
    """
    bind, port, deadline = address(settings), server_port(settings), time.monotonic() + timeout_seconds
    where = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)
    wanted, why = fingerprint(envfile.read(path_of(settings))), "no answer"
    while True:
        try:
            found = fingerprint(ssl.get_server_certificate((where, port), timeout=2))
            if found == wanted:
                return found
            why = f"another certificate is served: {found}"
        except (OSError, ValueError) as err:
            why = str(err)
        if time.monotonic() > deadline:
            fix = f"make logs; or another port: make up TLS_PORT={port + 1}; without: make up BIND="
            raise RocmlabError(f"the lab does not answer at https://{bind}:{port}", why, fix, exit_code=1)
        time.sleep(0.2)
