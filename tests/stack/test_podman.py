"""Podman's lab without Podman: what is found out about it, and what it would be told."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from clones import free_port
from engine_words import image
from hosts import Gpu, make_host

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import discover
from rocmlab.stack import gpus, podman_engine, resolve, settings, tokens
from rocmlab.stack.choice import Choice
from rocmlab.stack.engine import Engine
from rocmlab.stack.gpus import Passed
from rocmlab.stack.image import PASSED_INTO_THE_LAB, PROXIES
from rocmlab.stack.podman import BUILD_ARGUMENTS, OF_COMPOSE, SECRETS, PodmanLab
from rocmlab.stack.podman_engine import Podman
from rocmlab.stack.progress import PodmanProgress
from rocmlab.stack.requirements import TORCH_VERSION

ROOTFUL = Podman(is_usable=True, version="5.4.2", oci_runtime="crun")
PERSONAL = Podman(is_usable=True, version="4.3.1", oci_runtime="crun", is_rootless=True)
IDS = [{"container_id": 0, "host_id": 1000, "size": 1}, {"container_id": 1, "host_id": 100000, "size": 65536}]
TWO = (Gpu(1, 0x0300, 129), Gpu(2, 0x0600, 128, unique_id=7))


def podman(folder: Path, *, rootless: bool = True, code: int = 0, error: str = "", **changes: object) -> dict[str, str]:
    """Put a `podman` into a folder that answers with recorded words; return the environment that finds only it."""
    facts = {
        "host": {
            "ociRuntime": {"name": "crun"},
            "security": {"rootless": rootless, "selinuxEnabled": True},
            "idMappings": {"uidmap": changes.get("uidmap", IDS)},
            "slirp4netns": {"executable": changes.get("slirp4netns", "/usr/bin/slirp4netns")},
            "pasta": {"executable": changes.get("pasta", "")},
            "serviceIsRemote": changes.get("remote", False),
        },
        "store": {"graphRoot": "/home/me/.local/share/containers/storage"},
        "version": {"Version": changes.get("version", "4.3.1")},
    }
    program = folder / "podman"
    program.write_text(f"#!/bin/sh\ncat <<'E'\n{json.dumps(facts)}\nE\necho '{error}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:/bin:/usr/bin"}


class TestProbe:
    """Usable, absent, or lacking something: and what."""

    def test_no_command_is_no_podman(self, tmp_path: Path) -> None:
        """Without a problem: no one asked for it."""
        found = podman_engine.probe({"PATH": str(tmp_path)})

        assert (found.is_usable, found.problem) == (False, None)

    def test_what_it_says_is_known(self, tmp_path: Path) -> None:
        """Whose it is decides how the lab is made."""
        found = podman_engine.probe(podman(tmp_path))

        assert (found.is_usable, found.is_rootless, found.oci_runtime, found.version) == (True, True, "crun", "4.3.1")
        assert found.has_selinux
        assert found.root.endswith("containers/storage")

    @pytest.mark.parametrize(
        ("changes", "what", "fix"),
        [
            ({"version": "3.4.4"}, "Podman 3.4.4 is too old", "RUNTIME=native"),
            ({"version": ""}, "too old", "RUNTIME=native"),
            ({"remote": True}, "on another machine", "unset CONTAINER_HOST"),
            ({"uidmap": IDS[:1]}, "user ids of its own", "--add-subuids"),
            ({"uidmap": None}, "user ids of its own", "--add-subuids"),
            ({"slirp4netns": ""}, "no network", "slirp4netns"),
            ({"code": 125, "error": 'exec: "newuidmap": executable file not found'}, "newuidmap", "apt install uidmap"),
            ({"code": 125, "error": "no subuid ranges found for user me"}, "user ids of its own", "--add-subuids"),
            ({"code": 125, "error": "database is locked"}, "does not answer", "podman info"),
        ],
    )
    def test_what_it_lacks_is_a_problem(self, tmp_path: Path, changes: dict, what: str, fix: str) -> None:
        """Each with the command that fixes it."""
        found = podman_engine.probe(podman(tmp_path, **changes))

        assert not found.is_usable
        assert found.problem is not None
        assert what in found.problem.what
        assert fix in found.problem.fix
        assert found.problem.why

    def test_root_needs_no_user_namespace(self, tmp_path: Path) -> None:
        """Rootful Podman maps nothing."""
        assert podman_engine.probe(podman(tmp_path, rootless=False, uidmap=None, slirp4netns="")).is_usable

    def test_pasta_is_a_network_too(self, tmp_path: Path) -> None:
        """Podman 5 uses it by default."""
        assert podman_engine.probe(podman(tmp_path, slirp4netns="", pasta="/usr/bin/pasta", version="5.4.2")).is_usable

    def test_dockers_configuration_without_a_file_is_kept_from_it(self, tmp_path: Path) -> None:
        """Podman 4 takes DOCKER_CONFIG as its own and fails where the folder has no config.json."""
        assert podman_engine.environment_for({"DOCKER_CONFIG": str(tmp_path), "A": "1"}) == {"A": "1"}

        (tmp_path / "config.json").write_text("{}")
        assert "DOCKER_CONFIG" in podman_engine.environment_for({"DOCKER_CONFIG": str(tmp_path)})


def lab(
    folder: Path, podman: Podman = ROOTFUL, passed: Passed | None = None, env: str = "", **values: str
) -> PodmanLab:
    """A lab of Podman's with a `.env`."""
    (folder / "docker").mkdir(exist_ok=True)
    (folder / "docker/Dockerfile").write_text("HEALTHCHECK --interval=30s --start-interval=1s \\\n  CMD true\n")
    (folder / ".env").write_text(env)
    base = {
        "ROCMLAB_BACKEND": "rocm",
        "ROCMLAB_IMAGE": "rocmlab-1:rocm",
        "PORT": "8888",
        "JUPYTER_TOKEN": "secret",
        "SHARE": "share",
        "NOTEBOOKS_DIR": "./notebooks",
        "COMPOSE_PROJECT_NAME": "rocmlab-1",
        "RENDER_GID": "992",
        "VIDEO_GID": "44",
        "NB_UID": "1000",
        "NB_GID": "100",
    }
    given = passed or Passed(("/dev/kfd", "/dev/dri/renderD128"))
    return PodmanLab(settings.load(folder, {}), {**base, **values}, podman, given)


@pytest.fixture
def compose(repository: Path) -> dict:
    """compose.yaml as it is written."""
    return yaml.safe_load((repository / "compose.yaml").read_text(encoding="utf-8"))


class TestSameAsCompose:
    """compose.yaml and Podman's options cannot drift apart."""

    def test_the_variables_are_the_same(self, compose: dict, tmp_path: Path) -> None:
        """Every name under `environment`, and no other, is passed where it is set."""
        names = compose["services"]["lab"]["environment"]
        env = "".join(f"{name}=x\n" for name in names)

        passed = lab(tmp_path, env=env).lab_environment()

        assert {*names, "ROCMLAB_RUNTIME"} == set(passed)
        assert passed["ROCMLAB_RUNTIME"] == "podman"  # the image itself says docker
        assert set(names) == {"NB_UID", "NB_GID", *PASSED_INTO_THE_LAB, *PROXIES}

    def test_the_build_arguments_are_the_same(self, compose: dict) -> None:
        """Every argument but the proxies, which Podman lends to builds by itself; the defaults too."""
        service = compose["services"]["lab"]
        arguments = service["build"]["args"]
        defaults = {name: re.fullmatch(r"\$\{\w+:?-(.+)\}", str(arguments[name])) for name in ("TORCH_VERSION",)}

        only_where_set = {*PROXIES, "SOURCE_DATE_EPOCH"}
        assert set(arguments) - only_where_set == set(BUILD_ARGUMENTS)
        assert defaults["TORCH_VERSION"][1] == TORCH_VERSION
        assert service["shm_size"] == f"${{SHM_SIZE:-{OF_COMPOSE['SHM_SIZE']}}}"
        assert service["environment"]["NB_UID"] == f"${{NB_UID:-{OF_COMPOSE['NB_UID']}}}"

    def test_the_mounts_are_the_same(self, compose: dict, tmp_path: Path) -> None:
        """Share, notebooks and secrets at the same places."""
        service = compose["services"]["lab"]
        targets = {volume.removesuffix(":ro").rsplit(":", 1)[1] for volume in service["volumes"]}
        secrets = [name if isinstance(name, str) else name["source"] for name in service["secrets"]]
        targets |= {f"/run/secrets/{name}" for name in secrets}

        options = lab(tmp_path, CA_BUNDLE="ca.pem", PIP_CONFIG="pip.conf").options()
        mounted = [option.split(":") for option in options if option.startswith("--volume=")]

        assert {mount[1] for mount in mounted} == targets
        assert all(mount[2:] == ["ro"] for mount in mounted if mount[1].startswith("/run/secrets/"))
        assert {*SECRETS, *(name.lower() for name in tokens.NAMES)} == set(secrets)
        assert "--volume=rocmlab-1_share:/home/jovyan/share" in options

    def test_what_else_compose_says_is_known(self, compose: dict) -> None:
        """A new key in compose.yaml must be thought of here as well."""
        known = {"image", "build", "devices", "group_add", "ports", "environment", "secrets", "volumes", "shm_size"}
        known |= {"pids_limit", "mem_limit", "memswap_limit", "logging", "security_opt"}

        assert set(compose["services"]["lab"]) == known | {"stop_grace_period", "restart"}


class TestOptions:
    """What the container is given."""

    def test_rootful_joins_numeric_groups(self, tmp_path: Path) -> None:
        """As Docker's does."""
        options = lab(tmp_path).options()

        assert {"--group-add=992", "--group-add=44", "--device=/dev/kfd", "--device=/dev/dri/renderD128"} <= set(
            options
        )
        assert not any("userns" in option or "keep-groups" in option for option in options)

    def test_rootless_keeps_the_persons_groups(self, tmp_path: Path) -> None:
        """keep-groups stands alone, the user is the lab's user, and SELinux does not stand in the way."""
        options = lab(tmp_path, Podman(True, is_rootless=True, oci_runtime="crun", has_selinux=True)).options()

        assert [option for option in options if "group-add" in option] == ["--group-add=keep-groups"]
        assert "--userns=keep-id:uid=1000,gid=100" in options
        assert options[options.index("--security-opt") + 1] == "label=disable"

    def test_limits_are_those_of_compose_where_the_kernel_has_them(self, tmp_path: Path) -> None:
        """Processes, memory without more swap, and the log; without a controller Podman would not start the lab."""
        able = Podman(True, controllers=frozenset({"pids", "memory"}))
        bounded = set(lab(tmp_path, able, PIDS_LIMIT="300", MEMORY_LIMIT="2gb").options())
        unbounded = set(lab(tmp_path, able, MEMORY_LIMIT="").options())
        unable = lab(tmp_path, Podman(True), PIDS_LIMIT="300", MEMORY_LIMIT="2gb").options()

        assert {"--pids-limit=300", "--memory=2gb", "--memory-swap=2gb", "--log-opt=max-size=10m"} <= bounded
        assert not any(option.startswith("--memory") for option in unbounded)
        assert not any(option.startswith(("--memory", "--pids")) for option in unable)

    @pytest.mark.parametrize(("podman", "is_bound"), [(PERSONAL, True), (ROOTFUL, False)])
    def test_rootless_never_gains_rights(self, tmp_path: Path, podman: Podman, is_bound: bool) -> None:
        """Its first process is the lab's user already, so no one drops anything; rootful, the entry point does."""
        options = lab(tmp_path, podman).options()

        assert ({"--cap-drop=all", "--security-opt=no-new-privileges"} <= set(options)) is is_bound

    def test_a_mask_in_env_does_not_join_the_labs_own(self, tmp_path: Path) -> None:
        """ROCR_VISIBLE_DEVICES counts first, and what is left would be counted again by HIP_VISIBLE_DEVICES."""
        root = make_host(tmp_path / "host", *TWO)
        choice = Choice("rocm", "podman", "test", is_rootless=True)
        given = gpus.passed(settings.load(tmp_path, {"GPUS": "1"}), choice, discover(root, {}), root)

        inside = lab(tmp_path, PERSONAL, given, env="ROCR_VISIBLE_DEVICES=1\nHIP_VISIBLE_DEVICES=0\n").lab_environment()

        assert inside["HIP_VISIBLE_DEVICES"] == "1"
        assert "ROCR_VISIBLE_DEVICES" not in inside

    def test_what_a_run_asks_for_beats_env(self, tmp_path: Path) -> None:
        """As under Compose: `.env` speaks for the standing lab, and other lines of it are passed."""
        root = make_host(tmp_path / "host", *TWO)
        found = lab(tmp_path, passed=Passed(), env=f"SHM_SIZE=2gb\nROCMLAB_ROOT={root}\nNCCL_DEBUG=INFO\n")
        found.settings = settings.load(tmp_path, {"SHM_SIZE": "96mb", "ROCMLAB_ROOT": ""})

        assert "--shm-size=96mb" in found.options()
        assert not any("simulated-host" in option for option in found.options())
        assert found.lab_environment()["NCCL_DEBUG"] == "INFO"
        assert "ROCMLAB_ROOT" not in found.lab_environment()

    def test_a_proxy_in_lower_case_is_one_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """pip, git and curl of this host take it in either."""
        monkeypatch.delenv("HTTPS_PROXY", raising=False)
        monkeypatch.setenv("https_proxy", "http://proxy:3128")

        assert lab(tmp_path).lab_environment()["HTTPS_PROXY"] == "http://proxy:3128"

    @pytest.mark.slow
    @pytest.mark.parametrize("can_be_made", [True, False])
    def test_a_folder_is_there_before_the_running_lab_is_removed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_be_made: bool
    ) -> None:
        """Podman makes none, and would refuse to start what replaces a lab that is gone by then."""
        program, told = tmp_path / "bin/podman", tmp_path / "told"
        program.parent.mkdir()
        with_it = f'[ -d {tmp_path}/new/share ] && echo "$1 with it" >>{told} || echo "$1" >>{told}'
        program.write_text(f"#!/bin/sh\n{with_it}\n[ \"$1\" != image ] || echo '{image()}'\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        if not can_be_made:
            (tmp_path / "new").touch()

        with pytest.raises(RocmlabError) as caught:
            lab(tmp_path, SHARE="./new/share", PORT=str(free_port())).start(lambda _: None)

        lines = told.read_text().splitlines()
        assert ("run with it" in lines) == can_be_made
        assert ("SHARE=" in str(caught.value)) != can_be_made
        assert not {"rm", "run"} & set(lines)

    def test_the_token_is_no_argument(self, tmp_path: Path) -> None:
        """Arguments can be listed by every user of the machine."""
        found = lab(tmp_path, env="HF_TOKEN=hidden\n")

        assert "--env=HF_TOKEN" in found.options()
        assert not any("secret" in option.replace("secrets", "") or "hidden" in option for option in found.options())

    def test_the_tokens_are_files_for_their_owner(self, tmp_path: Path) -> None:
        """`podman inspect` shows the environment to whoever may ask the engine; another token is another container."""
        found = lab(tmp_path, METRICS_TOKEN="m" * 64)
        other = lab(tmp_path, METRICS_TOKEN="n" * 64)

        tokens.write(found.settings, found.values)
        mount = next(option for option in found.options() if option.endswith(":/run/secrets/jupyter_token:ro"))
        file = Path(mount.removeprefix("--volume=").split(":")[0])

        assert not {"JUPYTER_TOKEN", "METRICS_TOKEN"} & set(found.lab_environment())
        assert file.read_text() == "secret"
        assert file.stat().st_mode & 0o777 == 0o400
        assert tokens.digest(found.values) != tokens.digest(other.values)

    def test_podman_4_can_read_the_dockerfile(self, tmp_path: Path) -> None:
        """Its build knows no --start-interval; secrets are given, the named context is the folder of wheels."""
        found = lab(tmp_path, WHEELS="/wheels", CA_BUNDLE="/ca.pem")

        command = found._build_command()

        assert "start-interval" not in (tmp_path / ".rocmlab/Containerfile").read_text()
        assert command[command.index("--build-context") + 1] == "wheels=/wheels"
        assert command[command.index("--secret") + 1] == "id=ca_bundle,src=/ca.pem"
        assert "--format" in command

    def test_a_simulated_host_is_mounted_read_only(self, tmp_path: Path) -> None:
        """But for its /dev, whose plain files count as closed on a read-only mount."""
        root = make_host(tmp_path / "host", *TWO)
        found = lab(tmp_path, passed=Passed(), ROCMLAB_ROOT=str(root))

        assert f"--volume={root}:/opt/simulated-host:ro" in found.options()
        assert f"--volume={root}/dev:/opt/simulated-host/dev" in found.options()
        assert found.lab_environment()["ROCMLAB_ROOT"] == "/opt/simulated-host"
        assert "ROCMLAB_ROOT" not in found.environment

    def test_wsl_gets_its_node_and_libraries(self, tmp_path: Path) -> None:
        """As docker/compose.wsl.yaml says."""
        found = lab(tmp_path, passed=Passed(("/dev/dxg",), environment=(("HSA_ENABLE_DXG_DETECTION", "1"),)))

        assert {"--device=/dev/dxg", "--volume=/usr/lib/wsl:/usr/lib/wsl:ro"} <= set(found.options())
        assert found.lab_environment()["HSA_ENABLE_DXG_DETECTION"] == "1"


class TestFewerGpus:
    """GPUS=… without Compose."""

    def passed(self, folder: Path, choice: str, *, is_rootless: bool) -> Passed:
        """Return what a lab for two GPUs is given, whose HIP order is not that of their nodes."""
        root = make_host(folder / "host", *TWO)
        chosen = Choice("rocm", "podman", "test", is_rootless=is_rootless)
        return gpus.passed(settings.load(folder, {"GPUS": choice}), chosen, discover(root, {}), root)

    @pytest.mark.parametrize(
        ("choice", "nodes"),
        [
            ("all", ("/dev/kfd", "/dev/dri/renderD129", "/dev/dri/renderD128")),
            ("0", ("/dev/kfd", "/dev/dri/renderD129")),
            ("06:00.0", ("/dev/kfd", "/dev/dri/renderD128")),
        ],
    )
    def test_rootful_passes_exactly_the_chosen_nodes(self, tmp_path: Path, choice: str, nodes: tuple[str, ...]) -> None:
        """No mask is needed: a GPU whose node is absent does not exist for ROCm."""
        assert self.passed(tmp_path, choice, is_rootless=False) == Passed(nodes)

    def test_rootless_passes_all_and_masks(self, tmp_path: Path) -> None:
        """A subset of nodes stops ROCm there, so the mask chooses, and the lab is told to report it."""
        found = self.passed(tmp_path, "1", is_rootless=True)

        assert found.nodes == ("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129")
        assert dict(found.environment)["HIP_VISIBLE_DEVICES"] == "1"
        assert not self.passed(tmp_path / "all", "all", is_rootless=True).environment

    @pytest.mark.parametrize(("choice", "mask"), [("all", None), ("none", "-1")])
    def test_nodes_that_kfd_does_not_list_are_hidden_only_on_demand(
        self, tmp_path: Path, choice: str, mask: str | None
    ) -> None:
        """GPUS=all passes what is there; whether ROCm can use it is the doctor's matter."""
        root = make_host(tmp_path / "host", *TWO)
        shutil.rmtree(root / "sys/class/kfd")

        found = gpus.passed(settings.load(tmp_path, {"GPUS": choice}), Choice("rocm", "podman", "test"), [], root)

        assert found.nodes == ("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129")
        assert dict(found.environment).get("HIP_VISIBLE_DEVICES") == mask

    @pytest.mark.parametrize("is_rootless", [True, False])
    def test_none_hides_every_gpu(self, tmp_path: Path, is_rootless: bool) -> None:
        """The nodes stay: without /dev/kfd a lab for AMD GPUs refuses to start."""
        found = self.passed(tmp_path, "none", is_rootless=is_rootless)

        assert found.nodes[0] == "/dev/kfd"
        assert dict(found.environment)["HIP_VISIBLE_DEVICES"] == "-1"

    def test_rootless_needs_nodes_that_the_person_may_open(self, tmp_path: Path) -> None:
        """No one else opens them there; the error names the group and the command."""
        root = make_host(tmp_path / "host", *TWO)
        choice = Choice("rocm", "podman", "test", is_rootless=True)
        engine = Engine(is_usable=False)
        gpus.check(settings.load(tmp_path, {}), choice, engine, [], root)
        for path in (root / "dev/kfd", *(root / "dev/dri").iterdir()):
            path.chmod(0o600)

        with pytest.raises(RocmlabError, match="rootless Podman cannot open /dev/kfd") as caught:
            gpus.check(settings.load(tmp_path, {}), choice, engine, [], root)

        assert "usermod -aG render,video" in caught.value.problem.fix

    def test_wsl_has_no_single_gpus(self, tmp_path: Path) -> None:
        """GPUS=0 is rejected with the reason, before anything is built."""
        wsl = Choice("rocm", "docker", "test", is_wsl=True)
        with pytest.raises(RocmlabError, match="this is WSL2") as caught:
            gpus.check(settings.load(tmp_path, {"GPUS": "0"}), wsl, Engine(is_usable=True), [], tmp_path)

        assert "GPUS=all" in caught.value.problem.fix


@pytest.mark.parametrize(("runtime", "address"), [("docker", "0.0.0.0"), ("podman", "0.0.0.0"), ("native", None)])
def test_jupyterlab_listens_for_the_engine_in_either(
    repository: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, address: str | None
) -> None:
    """The engine publishes its port on the host's loopback; natively the command line gives the address."""

    class Section(SimpleNamespace):
        """A section of Jupyter's configuration."""

    found: dict[str, Section] = {}
    config = type("Config", (), {"__getattr__": lambda _, name: found.setdefault(name, Section())})()
    monkeypatch.setenv("ROCMLAB_RUNTIME", runtime)

    runpy.run_path(str(repository / "src/rocmlab/lab/jupyter_config.py"), {"get_config": lambda: config})

    assert getattr(found["ServerApp"], "ip", None) == address


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ubuntu:24.04", "docker.io/library/ubuntu:24.04"),
        ("rocm/tensorflow:latest", "docker.io/rocm/tensorflow:latest"),
        ("quay.example/a/b:1", "quay.example/a/b:1"),
        ("localhost/mine:1", "localhost/mine:1"),
        ("box:5000/mine:1", "box:5000/mine:1"),
    ],
)
def test_podman_is_given_names_with_their_registry(name: str, expected: str) -> None:
    """It guesses none, where Docker takes its own."""
    assert resolve.qualified(name) == expected


def test_a_build_of_podmans_is_shown_step_by_step() -> None:
    """Steps found in the cache are not listed; a failure's reason is what the step said."""
    lines = [
        "[2/5] STEP 1/6: FROM base AS base",
        "[2/5] STEP 5/6: RUN --mount=type=cache,target=/var/cache/apt     apt-get -qq update",
        "Get:1 something",
        "Get:2 something",
        "--> 1234",
        "[2/5] STEP 6/6: RUN /build/user",
        "--> Using cache 5678",
        "[3/5] STEP 2/5: RUN /build/environment /opt/build",
        "error: no Python",
        "Error: building at STEP: while running runtime: exit status 1",
    ]
    progress = PodmanProgress(
        "# What the base lacks.\nRUN --mount=type=cache,target=/var/cache/apt \\\n    apt-get -qq update\n"
    )

    shown = [line for text in lines if (line := progress(text))]

    assert shown == ["  What the base lacks", "  RUN /build/environment /opt/build"]
    assert progress.error(lines[-2:]) == "error: no Python"


# As Podman does: what is mounted must be there. Then it ends, so that no server is waited for.
STRICT = f"""#!/bin/sh
[ "$1" != image ] || echo '{image()}'
[ "$1" = run ] || exit 0
for word; do
  case $word in --volume=/*)
    source=${{word#--volume=}}
    [ -e "${{source%%:*}}" ] || {{ echo "Error: statfs ${{source%%:*}}: no such file or directory"; exit 125; }}
  esac
done
echo "everything that is mounted is there"
exit 125
"""


def test_the_folder_of_the_leases_is_made_before_each_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A boot removes it, and Podman makes no source of a mount; it is for every user."""
    (tmp_path / "podman").write_text(STRICT)
    (tmp_path / "podman").chmod(0o755)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    folder = tmp_path / "lock"
    limits = {"ROCMLAB_LIMITS": "/etc"}
    found = lab(tmp_path, ROCMLAB_LEASES=str(folder), METRICS_TOKEN="m", PORT=str(free_port()), **limits)

    with pytest.raises(RocmlabError, match="everything that is mounted is there"):
        found.start(lambda _: None)

    assert f"--volume={folder}:/run/lock/rocmlab" in found.options()
    assert "--volume=/etc:/etc/rocmlab:ro" in found.options()
    assert folder.stat().st_mode & 0o7777 == 0o1777


def test_a_lab_for_the_cpu_mounts_no_leases(tmp_path: Path) -> None:
    """It leases nothing, so a host whose folder is closed does not concern it."""
    assert not any("/run/lock" in option for option in lab(tmp_path, ROCMLAB_BACKEND="cpu").options())
