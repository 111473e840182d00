"""What installs packages: uv with pip's settings, and pip where uv cannot."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pip_environments
import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "docker/build/install.py"
STAND_IN = """#!{python}
import json, os, sys
names = [name for name in os.environ if name.startswith(("UV_", "SSL_", "HTTP", "ALL_"))]
with open({log!r}, "w") as file:
    json.dump({{"arguments": sys.argv[1:], "variables": {{name: os.environ[name] for name in names}}}}, file)
sys.exit({code})
"""


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """docker/build/install.py as a module."""
    spec = importlib.util.spec_from_file_location("install", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SYSTEM_CERTIFICATES", ())
    return module


def translate(install: ModuleType, **settings: str) -> dict[str, str]:
    """Translate pip's settings in an environment without variables."""
    found: dict[str, str] = install.translated({name.replace("_", "-"): text for name, text in settings.items()}, {})
    return found


def wheel(folder: Path, name: str, version: str = "1.0", more: str = "") -> Path:
    """Write a wheel with one empty module, and more lines of metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    information = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", f"{name}.py,,\n")
    return path


def index(folder: Path) -> str:
    """Write an index of all wheels in its folder `files`, and return its address."""
    for path in sorted((folder / "files").glob("*.whl")):
        page = folder / "simple" / path.name.partition("-")[0] / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        with open(page, "a", encoding="utf-8") as file:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            file.write(f'<a href="{path.as_uri()}#sha256={digest}">{path.name}</a>\n')
    return (folder / "simple").as_uri()


def versions(environment: Path, *names: str) -> dict[str, str]:
    """Return which versions of these packages are installed."""
    found = [path.name.split("-") for path in environment.glob("lib/python*/site-packages/*.dist-info")]
    return {name: version.removesuffix(".dist") for name, version, *_ in found if name in names}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pip and nothing else."""
    folder = tmp_path_factory.mktemp("installing") / "venv"
    pip_environments.create(folder)
    return folder


def run(environment: Path, *arguments: str, uv: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the program with an environment's interpreter; no setting of the machine's pip counts."""
    dropped = ("PIP_", "UV_", "SSL_", "REQUESTS_", "CURL_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(dropped)}
    given = {"PIP_CONFIG_FILE": os.devnull, "ROCMLAB_UV": str(uv), **variables}
    command = [str(environment / "bin/python"), str(PROGRAM), *arguments]
    return subprocess.run(command, env=kept | given, capture_output=True, text=True, check=False)


def stand_in(folder: Path, code: int = 0) -> Path:
    """Write a program in uv's place that records how it was called, and return the record's path."""
    (folder / "bin").mkdir(parents=True)
    record = folder / "called.json"
    program = folder / "bin/uv"
    program.write_text(STAND_IN.format(python=sys.executable, log=str(record), code=code))
    program.chmod(0o755)
    return record


class TestSettings:
    """pip's settings, as uv's variables."""

    def test_the_most_specific_section_wins(self, install: ModuleType) -> None:
        """As with pip: a variable before `[install]`, which comes before `[global]`; other commands' do not count."""
        listing = "\n".join(
            [
                "global.timeout='1'",
                "install.timeout='2'",
                "download.timeout='3'",
                "global.index-url='https://one/simple'",
                ":env:.index_url='https://two/simple'",
            ]
        )

        assert install.settings(listing) == {"timeout": "2", "index-url": "https://two/simple"}

    def test_an_empty_setting_does_not_count(self, install: ModuleType) -> None:
        """As with pip: `PIP_INDEX_URL=` does not take the mirror of `pip.conf` away."""
        listing = "global.index-url='https://mirror/simple'\n:env:.index-url=''"

        assert install.settings(listing) == {"index-url": "https://mirror/simple"}

    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [
            ("index_url", "https://one/simple", {"UV_DEFAULT_INDEX": "https://one/simple"}),
            (
                "extra_index_url",
                "https://one/simple\nhttps://two/simple",
                {"UV_INDEX": "https://one/simple https://two/simple", "UV_INDEX_STRATEGY": "unsafe-best-match"},
            ),
            ("find_links", "https://one/\nhttps://two/", {"UV_FIND_LINKS": "https://one/,https://two/"}),
            ("trusted_host", "one two", {"UV_INSECURE_HOST": "one two"}),
            ("constraint", "/a.txt", {"UV_CONSTRAINT": "/a.txt"}),
            ("require_hashes", "true", {"UV_REQUIRE_HASHES": "1"}),
            ("require_hashes", "0", {}),
            ("pre", "yes", {"UV_PRERELEASE": "allow"}),
            ("timeout", "7", {"UV_HTTP_TIMEOUT": "7"}),
            ("default_timeout", "7", {"UV_HTTP_TIMEOUT": "7"}),
            ("retries", "7", {"UV_HTTP_RETRIES": "7"}),
            ("proxy", "one:3128", dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://one:3128")),
            ("client_cert", "/c.pem", {"SSL_CLIENT_CERT": "/c.pem"}),
            ("cert", "/c.pem", {"SSL_CERT_FILE": "/c.pem"}),
            ("cache_dir", "/cache", {"UV_CACHE_DIR": "/cache/uv"}),
            ("no_cache_dir", "off", {"UV_NO_CACHE": "1"}),
            ("cache_dir", "/my cache", {"UV_CACHE_DIR": "/my cache/uv"}),
            ("progress_bar", "off", {}),
            ("keyring_provider", "auto", {}),
            ("index_url", "", {}),
        ],
    )
    def test_each_setting_has_its_equivalent(
        self, install: ModuleType, name: str, value: str, expected: dict[str, str]
    ) -> None:
        """Those of `pip.conf` and of variables are spelled alike by then."""
        assert translate(install, **{name: value}) == expected

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("no_binary", ":all:"),
            ("target", "/t"),
            ("keyring_provider", "import"),
            ("find_links", "https://one/a,b"),
            ("find_links", "http://one/"),
            ("index_url", "http://one/simple"),
            ("extra_index_url", "https://one/simple http://two/simple"),
            ("new", "1"),
        ],
    )
    def test_a_setting_without_equivalent_is_not_ignored(self, install: ModuleType, name: str, value: str) -> None:
        """It may decide what is installed, so pip, which knows it, has to install."""
        with pytest.raises(install.Untranslatable, match=name.replace("_", "-")):
            translate(install, **{name: value})

    def test_a_folder_of_wheels_that_is_missing_is_ignored(self, install: ModuleType, tmp_path: Path) -> None:
        """As pip does: a `pip.conf` is often lent to an image's build, where the host's folders are missing."""
        found = translate(install, find_links=f"/no/such/folder {tmp_path}", extra_index_url="file:///no/such/index")

        assert found == {"UV_FIND_LINKS": str(tmp_path)}

    def test_a_folder_of_certificates_is_one(self, install: ModuleType, tmp_path: Path) -> None:
        """Uv has a variable of its own for it."""
        assert translate(install, cert=str(tmp_path)) == {"SSL_CERT_DIR": str(tmp_path)}

    def test_the_authorities_of_requests_count(self, install: ModuleType) -> None:
        """Pip trusts what REQUESTS_CA_BUNDLE names."""
        assert install.translated({}, {"REQUESTS_CA_BUNDLE": "/c.pem"}) == {"SSL_CERT_FILE": "/c.pem"}

    def test_the_systems_authorities_are_trusted(
        self, install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A company adds its own there; where the system has none, uv has a list of its own."""
        bundle = tmp_path / "ca.crt"
        monkeypatch.setattr(install, "SYSTEM_CERTIFICATES", (str(bundle),))

        assert install.translated({}, {}) == {}
        bundle.touch()
        assert install.translated({}, {}) == {"UV_SYSTEM_CERTS": "1"}
        assert install.translated({}, {"SSL_CERT_FILE": "/mine.pem"}) == {}

    @pytest.mark.parametrize(
        ("found", "arguments", "expected"),
        [
            *(({}, [], True), ({}, ["--no-compile"], False)),
            *(({"no-compile": "no"}, [], False), ({"compile": "0"}, [], False)),
        ],
    )
    def test_code_is_compiled_where_pip_would(
        self, install: ModuleType, found: dict[str, str], arguments: list[str], expected: bool
    ) -> None:
        """Pip's documentation: `no-compile = no` in a file is the option `--no-compile`."""
        assert install.compiles(found, arguments) is expected


class TestInstaller:
    """Which of the two installs."""

    def test_uv_gets_pips_settings_and_arguments(self, environment: Path, tmp_path: Path) -> None:
        """Also those of a `pip.conf`; addresses, which may contain a password, are not among the arguments."""
        record = stand_in(tmp_path / "uv")
        configuration = tmp_path / "pip.conf"
        configuration.write_text("[global]\nindex-url = https://me:secret@one/simple\n[install]\nno-index = no\n")
        (tmp_path / "wheels").mkdir()
        arguments = [
            "--no-compile",
            "--no-deps",
            "--find-links",
            str(tmp_path / "wheels"),
            "--retries",
            "1",
            "torch==1",
        ]

        done = run(environment, *arguments, uv=tmp_path / "uv", PIP_CONFIG_FILE=str(configuration), PIP_TIMEOUT="9")
        called = json.loads(record.read_text())

        assert done.returncode == 0, done.stderr
        assert called["arguments"][:2] == ["pip", "install"]
        assert called["arguments"][-2:] == ["--no-deps", "torch==1"]
        assert str(environment / "bin/python") in called["arguments"]
        assert not {"--no-compile", "--compile-bytecode", "--no-index"} & set(called["arguments"])
        assert "secret" not in " ".join(called["arguments"])
        assert (
            called["variables"]
            | {
                "UV_DEFAULT_INDEX": "https://me:secret@one/simple",
                "UV_FIND_LINKS": str(tmp_path / "wheels"),
                "UV_HTTP_RETRIES": "1",
                "UV_HTTP_TIMEOUT": "9",
            }
            == called["variables"]
        )

    def test_only_pips_settings_say_where_packages_come_from(self, environment: Path, tmp_path: Path) -> None:
        """Uv's own variables could name another index; constraints of settings and of arguments both hold."""
        record = stand_in(tmp_path / "uv")
        names = ("UV_INDEX", "UV_TORCH_BACKEND", "UV_CONSTRAINT", "UV_NO_VERIFY_HASHES")
        (tmp_path / "a.txt").touch()

        run(
            environment,
            *("--constraint", str(tmp_path / "b.txt"), "torch"),
            uv=tmp_path / "uv",
            **dict.fromkeys(names, "other"),
            UV_CACHE_DIR="/mine",
            PIP_CONSTRAINT=str(tmp_path / "a.txt"),
        )
        called = json.loads(record.read_text())
        variables = {name: text for name, text in called["variables"].items() if name.startswith("UV_")}
        variables.pop("UV_SYSTEM_CERTS", None)

        assert variables == {"UV_CACHE_DIR": "/mine", "UV_CONSTRAINT": f"{tmp_path}/a.txt {tmp_path}/b.txt"}
        assert called["arguments"][-1] == "torch"
        assert "--constraint" not in called["arguments"]

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("constraint", "lock", "counts"),
        [
            ("torch<=2.14.1\n# and\nTwo>=1 ; python_version > '3'\n", "one==1.0 \\\n  --hash=sha256:00\n", False),
            ("torch<=2.14.1\n", "torch==2.13.0 \\\n    --hash=sha256:00\n", True),
            ("other.one<2\n", "Other_One==1.0 --hash=sha256:00\n", True),
            ("-c more.txt\n", "one==1.0 --hash=sha256:00\n", True),
            ("torch<=2.14.1\n", "-r more.txt\n", True),
            (None, "one==1.0 --hash=sha256:00\n", True),
        ],
        ids=("others", "the_same", "spelled_differently", "more_constraints", "more_requirements", "missing"),
    )
    def test_beside_hashes_a_constraint_of_other_packages_is_left_out(
        self, environment: Path, tmp_path: Path, constraint: str | None, lock: str, counts: bool
    ) -> None:
        """Uv rejects it, pip ignores it, and then a company's `pip.conf` would have everything installed by pip."""
        record = stand_in(tmp_path / "uv")
        (tmp_path / "lock.txt").write_text(lock)
        if constraint is not None:
            (tmp_path / "c.txt").write_text(constraint)

        arguments = ["--no-deps", "--require-hashes", "--requirement", str(tmp_path / "lock.txt")]
        run(environment, *arguments, uv=tmp_path / "uv", PIP_CONSTRAINT=str(tmp_path / "c.txt"))

        given = json.loads(record.read_text())["variables"].get("UV_CONSTRAINT")
        assert given == (str(tmp_path / "c.txt") if counts else None)

    def test_an_upgrade_is_of_the_named_packages(self, environment: Path, tmp_path: Path) -> None:
        """As with pip: uv's own `--upgrade` would replace everything that is there."""
        record = stand_in(tmp_path / "uv")

        run(environment, "-U", "--force-reinstall", "--no-deps", "one[extra]>=1", "two", uv=tmp_path / "uv")

        called = json.loads(record.read_text())["arguments"]
        upgrades = [f"--{kind}-package {name}" for kind in ("upgrade", "reinstall") for name in ("one", "two")]
        assert all(each in " ".join(called) for each in upgrades)
        assert called[-3:] == ["--no-deps", "one[extra]>=1", "two"]
        assert not {"-U", "--upgrade", "--force-reinstall"} & set(called)

    @pytest.mark.parametrize("arguments", [["-U", "-r", "list.txt"], ["--upgrade", "./folder"]])
    def test_pip_upgrades_what_is_not_named(self, install: ModuleType, arguments: list[str]) -> None:
        """Which packages a file or folder has is not known here."""
        with pytest.raises(install.Untranslatable, match=r"upgrade|U"):
            install.named(arguments)

    def test_from_the_cache_alone_or_not_at_all(self, environment: Path, tmp_path: Path) -> None:
        """Where that is requested pip, which has no such cache, is not tried."""
        record = stand_in(tmp_path / "uv", code=1)

        done = run(environment, "one", uv=tmp_path / "uv", ROCMLAB_OFFLINE="1")

        assert done.returncode == 1
        assert "pip installs" not in done.stderr
        assert "--offline" in json.loads(record.read_text())["arguments"]

    def test_settings_that_pip_rejects_are_not_ignored(self, environment: Path, tmp_path: Path) -> None:
        """A `pip.conf` with a mistake: pip's error, and nothing comes from the public index instead."""
        record = stand_in(tmp_path / "uv")
        configuration = tmp_path / "pip.conf"
        configuration.write_text("index-url = https://mirror/simple\n")

        done = run(environment, "torch", uv=tmp_path / "uv", PIP_CONFIG_FILE=str(configuration))

        assert done.returncode != 0
        assert not record.exists()
        assert "onfiguration file" in done.stderr

    @pytest.mark.parametrize("is_usable", [True, False])
    def test_the_pip_beside_uv_reads_the_settings(self, environment: Path, tmp_path: Path, is_usable: bool) -> None:
        """An image's build has one that is compiled; where it is too old for this Python, its own pip reads them."""
        record = stand_in(tmp_path / "uv")
        (tmp_path / "uv/pip/pip").mkdir(parents=True)
        program = "print(\"global.timeout='9'\")" if is_usable else "import a_module_of_older_pythons"
        (tmp_path / "uv/pip/pip/__init__.py").touch()
        (tmp_path / "uv/pip/pip/__main__.py").write_text(program)

        done = run(environment, "torch", uv=tmp_path / "uv", PIP_TIMEOUT="8")

        assert done.returncode == 0, done.stderr
        assert json.loads(record.read_text())["variables"]["UV_HTTP_TIMEOUT"] == ("9" if is_usable else "8")

    @pytest.mark.parametrize("arguments", [["--no-index"], []])
    def test_no_index_is_an_option(self, environment: Path, tmp_path: Path, arguments: list[str]) -> None:
        """Uv has no variable for it; as an argument or as pip's setting, it is given once."""
        record = stand_in(tmp_path / "uv")
        variables = {} if arguments else {"PIP_NO_INDEX": "1"}

        run(environment, *arguments, "torch", uv=tmp_path / "uv", **variables)

        assert json.loads(record.read_text())["arguments"].count("--no-index") == 1

    @pytest.mark.long
    @pytest.mark.parametrize("reason", ["missing", "failing", "setting"])
    def test_pip_installs_where_uv_cannot(self, environment: Path, tmp_path: Path, reason: str) -> None:
        """Where uv is missing, fails, or has no equivalent of a setting; which of them is written to the log."""
        name = f"by_pip_{reason}"
        wheel(tmp_path / "wheels", name)
        if reason != "missing":
            stand_in(tmp_path / "uv", code=int(reason == "failing"))
        variables = {"PIP_NO_BINARY": "other"} if reason == "setting" else {}

        done = run(
            environment,
            *("--no-index", "--find-links", str(tmp_path / "wheels"), name),
            uv=tmp_path / "uv",
            **variables,
        )

        assert done.returncode == 0, done.stderr
        assert "pip installs, not uv: " in done.stderr
        assert list(environment.glob(f"lib/python*/site-packages/{name}.py"))

    @pytest.mark.parametrize("has_uv", [True, False])
    def test_what_installs_keeps_a_lock(self, environment: Path, tmp_path: Path, has_uv: bool) -> None:
        """It holds the lock that it was started with, also where its parent was killed."""
        uv = tmp_path / "uv"
        record = stand_in(uv)
        variables = {"ROCMLAB_UV": str(uv if has_uv else tmp_path), "PIP_CONFIG_FILE": os.devnull}
        looks = f"import os, pathlib; pathlib.Path({str(record)!r}).write_text(str(os.path.exists('/dev/fd/%d')))"
        with open(tmp_path / "lock", "w", encoding="utf-8") as lock:
            (uv / "bin/uv").write_text(f"#!{sys.executable}\n" + looks % lock.fileno())
            (tmp_path / "pip.py").write_text(looks % lock.fileno())
            command = [sys.executable if not has_uv else str(environment / "bin/python"), str(PROGRAM), "one"]
            subprocess.run(
                command,
                env={**os.environ, **variables, "PYTHONPATH": "" if has_uv else str(tmp_path)},
                pass_fds=[lock.fileno()],
                check=True,
            )

        assert record.read_text() == "True"

    def test_the_error_is_pips(self, environment: Path, tmp_path: Path) -> None:
        """What is shown of a failed installation stays what users can search for."""
        done = run(environment, "--no-index", "no-such-package", uv=tmp_path / "uv")

        assert done.returncode != 0
        assert "ERROR: No matching distribution found for no-such-package" in done.stderr

    def test_uv_itself_installs(self, install: ModuleType, environment: Path, tmp_path: Path) -> None:
        """From a folder of wheels that pip's settings name, with hashes, and into this environment.

        A constraint of another package does not matter. When the wheel was made is not kept in an image.
        """
        import uv

        (tmp_path / "constraints.txt").write_text("other<=2\n")
        made = wheel(tmp_path / "wheels", "by_uv")
        digest = hashlib.sha256(made.read_bytes()).hexdigest()
        lock = tmp_path / "lock.txt"
        lock.write_text(f"by_uv==1.0 --hash=sha256:{digest}\n")
        folder = Path(uv.find_uv_bin()).parents[1]
        settings = {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(tmp_path / "wheels"),
            "PIP_CACHE_DIR": str(tmp_path / "cache"),
            "PIP_CONSTRAINT": str(tmp_path / "constraints.txt"),
        }

        done = run(environment, "--no-deps", "--require-hashes", "--requirement", str(lock), uv=folder, **settings)
        wrong = tmp_path / "wrong.txt"
        wrong.write_text(f"by_uv==1.0 --hash=sha256:{'0' * 64}\n")
        again = run(
            environment,
            *("--force-reinstall", "--no-deps", "--require-hashes", "--requirement", str(wrong)),
            uv=folder,
            **settings,
        )

        assert done.returncode == 0, done.stderr
        assert "pip installs" not in done.stderr
        site = next(environment.glob("lib/python*/site-packages"))
        assert (site / "by_uv-1.0.dist-info/INSTALLER").read_text().strip() == "uv"
        assert list(site.glob("__pycache__/by_uv.*.pyc"))
        assert not [path for path in environment.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o002]
        assert again.returncode != 0
        assert "HASHES" in again.stderr
        recorded = (site / "by_uv-1.0.dist-info/RECORD").read_text().splitlines()
        note = "by_uv-1.0.dist-info/uv_cache.json"
        assert (site / note).exists()
        install.forget_times(site)
        assert not (site / note).exists()
        left = (site / "by_uv-1.0.dist-info/RECORD").read_text().splitlines()
        assert [line for line in recorded if line not in left] == [
            line for line in recorded if line.startswith(f"{note},")
        ]

    @pytest.mark.long
    @pytest.mark.parametrize("has_uv", [True, False])
    @pytest.mark.parametrize("setting", ["extra-index-url", "find-links"])
    def test_no_other_index_outbids_the_one_that_was_chosen(
        self, environment: Path, tmp_path: Path, setting: str, has_uv: bool
    ) -> None:
        """Pip takes the highest version of all places; what a wheel requires comes from the chosen one as well."""
        import uv

        wheel(tmp_path / "chosen/files", "engine", "1.0", "Requires-Dist: sdk\n")
        wheel(tmp_path / "chosen/files", "sdk", "1.0")
        for name in ("engine", "sdk"):
            wheel(tmp_path / "other/files", name, "9.0")
        chosen, other = (index(tmp_path / name) for name in ("chosen", "other"))
        configuration = tmp_path / "pip.conf"
        place = (tmp_path / "other/files") if setting == "find-links" else other
        configuration.write_text(f"[global]\n{setting} = {place}\n")
        folder = Path(uv.find_uv_bin()).parents[1] if has_uv else tmp_path
        given = ("--force-reinstall", "--index-url", chosen, "engine", "sdk")
        settings = {"PIP_CONFIG_FILE": str(configuration), "PIP_CACHE_DIR": str(tmp_path / "cache")}

        run(environment, *given, uv=folder, **settings)
        before = versions(environment, "engine", "sdk")
        done = run(environment, "--no-other-index", *given, uv=folder, **settings)

        assert before == {"engine": "9.0", "sdk": "9.0"}
        assert done.returncode == 0, done.stderr
        assert versions(environment, "engine", "sdk") == {"engine": "1.0", "sdk": "1.0"}
        assert ("pip installs" in done.stderr) is not has_uv

    def test_a_framework_has_the_hashes_that_its_index_gave_once(self, environment: Path, tmp_path: Path) -> None:
        """Another file under the same name is rejected, whatever the index says now; without a lock it is taken."""
        import uv

        made = [
            wheel(tmp_path / "index/files", "torch", "2.13.0+rocm7.2", "Requires-Dist: numpy\nRequires-Dist: triton\n")
        ]
        made.append(wheel(tmp_path / "index/files", "triton", "3.7.1"))
        place = index(tmp_path / "index")
        folder = Path(uv.find_uv_bin()).parents[1]
        scripts = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        locks = tmp_path / "locks"
        command = [str(PROGRAM.parents[2] / "scripts/lock-frameworks"), str(locks), place]
        locked = subprocess.run(command, env=scripts, capture_output=True, text=True, check=False)
        lock = locks / "simple.txt"  # the last part of the address
        given = (
            "--no-other-index",
            "--index-url",
            place,
            "--force-reinstall",
            "--hashes",
            str(locks / "*.txt"),
            "torch==2.13.0",
        )

        done = run(environment, *given, uv=folder, PIP_CACHE_DIR=str(tmp_path / "cache"))
        found = versions(environment, "torch", "triton", "numpy")
        for path in made:
            path.unlink()
        shutil.rmtree(tmp_path / "index/simple")
        wheel(tmp_path / "index/files", "torch", "2.13.0+rocm7.2", "Summary: another\n")
        wheel(tmp_path / "index/files", "triton", "3.7.1", "Summary: another\n")
        index(tmp_path / "index")
        changed = run(environment, *given, uv=folder, PIP_CACHE_DIR=str(tmp_path / "cache"))
        lock.unlink()
        without = run(environment, *given, uv=folder, PIP_CACHE_DIR=str(tmp_path / "cache"))

        assert locked.returncode == 0, locked.stderr
        assert done.returncode == 0, done.stderr
        assert "torch==2.13.0: by the hashes of simple.txt" in done.stderr
        assert found == {"torch": "2.13.0+rocm7.2", "triton": "3.7.1"}  # numpy is in the lock of the environment
        assert changed.returncode != 0
        assert "HASHES" in changed.stderr  # pip's words
        assert without.returncode == 0, without.stderr

    def test_the_hashes_of_another_version_do_not_count(self, install: ModuleType, tmp_path: Path) -> None:
        """Nor those of a lock that lacks one of the packages, or of another build; an option's value is no package."""
        lock = tmp_path / "jax-rocm7.txt"
        lock.write_text(
            "jax-rocm7-pjrt==0.10.2 \\\n    --hash=sha256:0\njax-rocm7-plugin==0.10.2 \\\n    --hash=sha256:1\n"
        )
        hashes = ["--hashes", str(tmp_path / "jax-*.txt")]
        used = ["--no-deps", "--require-hashes", "--requirement", str(lock)]
        both, one = ["jax-rocm7-plugin==0.10.2", "jax-rocm7-pjrt==0.10.2"], ["jax-rocm7-plugin==0.10.2"]

        assert install.by_hashes(["--constraint", "c.txt", *hashes, *both]) == ["--constraint", "c.txt", *used]
        assert install.by_hashes([*hashes, *one]) == used
        own_build = ["jax-rocm7-plugin==0.10.2+own"]
        for other in (["jax-rocm7-plugin==0.10.3"], own_build, ["jax-rocm7-plugin"], [*one, "other==1"], []):
            assert install.by_hashes([*hashes, *other]) == other
