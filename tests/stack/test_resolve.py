"""The values that Compose and the native lab get."""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path

import pytest
from hosts import Gpu, give, make_host

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import discover
from rocmlab.stack import resolve, settings
from rocmlab.stack.choice import Choice

ROCM = Choice("rocm", "docker", "test")
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="giving a file to another group needs root (.ci/run has it)")


def values(project: Path, root: Path, choice: Choice = ROCM, **flags: str) -> dict[str, str]:
    """Resolve for a project folder and a host."""
    (project / "notebooks").mkdir(exist_ok=True)
    return resolve.resolve(settings.load(project, flags), choice, discover(root), root)


class TestGroups:
    """Numeric groups of the device nodes, whatever the host calls them."""

    @needs_root
    @pytest.mark.parametrize(
        ("kfd", "render", "card", "expected"),
        [
            (104, 104, 44, ("104", "44")),
            (109, 109, 44, ("109", "44")),
            (992, 992, 39, ("992", "39")),
            (61104, 61992, 44, ("61992", "61104")),  # no group has these numbers: unnamed, and two owners
            (0, 0, 0, ("0", "44")),  # no render group at all: root owns everything
            (44, 44, 44, ("44", "39")),  # an old distribution: video owns everything
        ],
    )
    def test_any_host_gives_two_different_numbers(
        self, tmp_path: Path, kfd: int, render: int, card: int, expected: tuple[str, str]
    ) -> None:
        """The render nodes' group comes first; Compose refuses equal entries, so the second one always differs."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128))
        for name, gid in (("kfd", kfd), ("dri/renderD128", render), ("dri/card0", card)):
            give(root / "dev" / name, gid)

        assert expected == resolve.device_groups(root)

    def test_a_host_without_nodes_still_gives_two(self, tmp_path: Path) -> None:
        """The base file asks for both even where an overlay drops them."""
        first, second = resolve.device_groups(tmp_path)

        assert first != second


class TestValues:
    """The rest of `.env`."""

    def test_radeon_and_instinct_get_their_own_base(self, tmp_path: Path) -> None:
        """The gfx target decides which rocm/tensorflow tag is the default."""
        radeon = make_host(tmp_path / "radeon", Gpu(1, 0x0300, 128, gfx_target_version=110000))
        instinct = make_host(tmp_path / "instinct", Gpu(1, 0x0300, 128, gfx_target_version=90402))

        assert values(tmp_path, radeon)["BASE_IMAGE"] == resolve.BASE_IMAGES["radeon"]
        assert values(tmp_path, instinct)["BASE_IMAGE"] == resolve.BASE_IMAGES["instinct"]

    def test_a_pinned_base_has_its_digest(self, tmp_path: Path) -> None:
        """docker/bases.txt adds it to the tag; in a `.env` that was copied from another machine it is not a choice."""
        host = make_host(tmp_path / "host", Gpu(1, 0x0300, 128, gfx_target_version=110000))
        tag, digest = resolve.BASE_IMAGES["radeon"], f"sha256:{'ab' * 32}"
        (tmp_path / "docker").mkdir()
        (tmp_path / "docker/bases.txt").write_text(f"# of today\n{tag}-2 sha256:00\n{tag} {digest}\n")
        (tmp_path / ".env").write_text(f"ROCMLAB_BACKEND=rocm\nBASE_IMAGE={tag}@{digest}\n")

        assert values(tmp_path, host)["BASE_IMAGE"] == f"{tag}@{digest}"
        assert "BASE_IMAGE" not in settings.load(tmp_path, {}).chosen

    def test_the_token_has_256_bits_and_stays(self, tmp_path: Path) -> None:
        """It is made once; the next `make up` finds it in `.env`."""
        found = settings.load(tmp_path, {})
        first = values(tmp_path, tmp_path)["JUPYTER_TOKEN"]
        settings.save(found, {"JUPYTER_TOKEN": first})

        assert len(bytes.fromhex(first)) == 32
        assert values(tmp_path, tmp_path)["JUPYTER_TOKEN"] == first

    @pytest.mark.parametrize(
        ("backend", "files"),
        [
            ("rocm", "compose.yaml:docker/compose.leases.yaml"),
            ("cuda", "compose.yaml:docker/compose.cuda.yaml:docker/compose.leases.yaml"),
            ("cpu", "compose.yaml:docker/compose.cpu.yaml"),
        ],
    )
    def test_compose_file_follows_the_backend(self, tmp_path: Path, backend: str, files: str) -> None:
        """Plain `docker compose` then does what `make up` does."""
        assert values(tmp_path, tmp_path, Choice(backend, "docker", "test"))["COMPOSE_FILE"] == files

    def test_fewer_gpus_add_the_generated_overlay(self, tmp_path: Path) -> None:
        """GPUS=0 is a matter of one more Compose file."""
        root = make_host(tmp_path / "host", Gpu(1, 0x0300, 128))

        assert values(tmp_path, root, GPUS="0")["COMPOSE_FILE"].endswith(":.rocmlab/compose.gpus.yaml")

    @needs_root
    def test_the_lab_user_is_the_owner_of_the_notebooks(self, tmp_path: Path) -> None:
        """What the lab saves there belongs to the user who cloned; for root it is the lab's own user."""
        (tmp_path / "notebooks").mkdir()
        assert values(tmp_path, tmp_path)["NB_UID"] == "1000"

        os.chown(tmp_path / "notebooks", 1234, -1)
        assert values(tmp_path, tmp_path)["NB_UID"] == "1234"

    def test_two_clones_are_two_projects(self, tmp_path: Path) -> None:
        """Folders of the same name, as two users of one machine have them, do not share containers and volumes."""
        alice, bob = (resolve.project_name(tmp_path / user / "rocmlab") for user in ("alice", "bob"))

        assert alice != bob
        assert re.fullmatch(r"rocmlab-[0-9a-f]{6}", alice)

    def test_a_clone_that_moves_keeps_its_volume(self, tmp_path: Path) -> None:
        """The name is made once and stays in `.env`, so that the share is found again."""
        found = settings.load(tmp_path, {})
        settings.save(found, {"COMPOSE_PROJECT_NAME": "rocmlab-abcdef"})

        assert values(tmp_path, tmp_path, Choice("cpu", "docker", "test"))["COMPOSE_PROJECT_NAME"] == "rocmlab-abcdef"

    def test_an_overlay_that_a_person_added_is_used(self, tmp_path: Path) -> None:
        """A derived line of `.env` that someone changed is theirs, COMPOSE_FILE included."""
        mine = "compose.yaml:docker/compose.cpu.yaml:mine.yaml"
        settings.save(settings.load(tmp_path, {}), {"COMPOSE_FILE": "compose.yaml:docker/compose.cpu.yaml"})
        (tmp_path / ".env").write_text(f"COMPOSE_FILE={mine}\n")

        assert values(tmp_path, tmp_path, Choice("cpu", "docker", "test"))["COMPOSE_FILE"] == mine

    def test_a_share_is_a_folder_or_the_volume(self, tmp_path: Path) -> None:
        """Another bare word would be a volume that compose.yaml does not know."""
        cpu = Choice("cpu", "docker", "test")

        with pytest.raises(RocmlabError, match="neither a folder nor") as caught:
            values(tmp_path, tmp_path, cpu, SHARE="data")

        assert caught.value.problem.fix == "make up SHARE=./data"
        assert values(tmp_path, tmp_path, cpu, SHARE="~/data")["SHARE"] == os.path.expanduser("~/data")
        assert values(tmp_path, tmp_path, cpu)["SHARE"] == "share"

    @pytest.mark.parametrize("runtime", ["native", "docker"])
    @pytest.mark.parametrize("name", ["SHARE", "NOTEBOOKS_DIR"])
    @pytest.mark.parametrize(
        "folder",
        ["./.rocmlab", "./x/../.rocmlab/home", "./.rocmlab/home/a", "./.rocmlab/environments", "./.venv/a", "./link/b"],
    )
    def test_files_of_a_user_are_not_where_programs_remove_some(
        self, tmp_path: Path, folder: str, name: str, runtime: str
    ) -> None:
        """Not in the folder that JupyterLab shows, not in an environment; also not by way of a link."""
        (tmp_path / "link").symlink_to(".git")
        cpu = Choice("cpu", runtime, "test")

        with pytest.raises(RocmlabError, match=f"{name}=.* is not a folder for your files") as caught:
            values(tmp_path, tmp_path, cpu, **{name: folder})

        assert f"make up {name}=" in caught.value.problem.fix

    @pytest.mark.parametrize("name", ["SHARE", "NOTEBOOKS_DIR"])
    def test_a_colon_in_a_mount_is_refused(self, tmp_path: Path, name: str) -> None:
        """An engine would take the path apart at it, after the image was built; a native lab has no mounts."""
        with pytest.raises(RocmlabError, match=f"{name}: .*disk:1 has a colon"):
            values(tmp_path, tmp_path, Choice("cpu", "docker", "test"), **{name: "./disk:1"})

        assert values(tmp_path, tmp_path, Choice("cpu", "native", "test"), **{name: "./disk:1"})

    def test_a_native_lab_takes_certificates_and_pips_configuration_as_a_container_does(self, tmp_path: Path) -> None:
        """By the variables that pip, uv and notebooks read; those that were not chosen stay as they are."""
        found = resolve.pip_variables(
            settings.load(tmp_path, {"CA_BUNDLE": "ca.pem", "PIP_CONFIG": "/etc/mirror.conf"})
        )

        assert found["PIP_CERT"] == found["REQUESTS_CA_BUNDLE"] == found["SSL_CERT_FILE"] == str(tmp_path / "ca.pem")
        assert found["PIP_CONFIG_FILE"] == "/etc/mirror.conf"
        assert resolve.pip_variables(settings.load(tmp_path, {})) == {}

    @pytest.mark.parametrize("folder", ["./share", "./.rocmlab/demo/share", "./.rocmlab-mine", "~/data", "/data"])
    def test_every_other_folder_may_be_the_share(self, tmp_path: Path, folder: str) -> None:
        """That of the demonstration among them."""
        assert values(tmp_path, tmp_path, Choice("cpu", "native", "test"), SHARE=folder)["SHARE"]

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("TORCH_INDEX", "https://me:SECRET@mirror.example/whl"),
            ("TENSORFLOW_INDEX", "https://SECRET@mirror.example/whl"),
            ("JAX_PACKAGES", "--index-url https://me:SECRET@mirror.example/ jax-rocm7-plugin"),
        ],
    )
    def test_no_password_gets_into_arguments(self, tmp_path: Path, name: str, value: str) -> None:
        """Each user of the host can list those of pip, and an image's history has those of its build."""
        with pytest.raises(RocmlabError, match=f"{name} has credentials") as caught:
            values(tmp_path, tmp_path, Choice("cpu", "native", "test"), **{name: value})

        assert "SECRET" not in str(caught.value)
        assert "PIP_CONFIG" in caught.value.problem.fix

    @pytest.mark.parametrize(
        "value",
        ["https://mirror.example/whl", "jax @ https://mirror.example/jax-1.whl", "git+ssh://git@host.example/a"],
    )
    def test_an_address_without_a_password_is_taken(self, tmp_path: Path, value: str) -> None:
        """Also one with another @."""
        assert values(tmp_path, tmp_path, Choice("cpu", "native", "test"), JAX_PACKAGES=value)["JAX_PACKAGES"] == value

    def test_an_empty_index_means_pips_own(self, tmp_path: Path) -> None:
        """TORCH_INDEX= is a choice, not the absence of one."""
        assert values(tmp_path, tmp_path, TORCH_INDEX="")["TORCH_INDEX"] == ""
        assert values(tmp_path, tmp_path)["TORCH_INDEX"] == resolve.TORCH_INDEXES["rocm"]

    def test_jaxs_plugin_is_none_until_one_is_named(self, tmp_path: Path) -> None:
        """Without a choice nothing is written; a choice comes through, and lasts."""
        new = tmp_path / "new"
        new.mkdir()
        words = "jax-cuda13-plugin[with-cuda]==0.10.2 other==1"
        named = values(tmp_path, tmp_path, JAX_PACKAGES=words)
        settings.save(settings.load(tmp_path, {"JAX_PACKAGES": words}), named)

        assert "JAX_PACKAGES" not in values(new, tmp_path)
        assert values(tmp_path, tmp_path)["JAX_PACKAGES"] == words


class TestPip:
    """What pip knows of mirrors and proxies is lent to the build."""

    def test_pips_own_configuration_is_found(self, tmp_path: Path) -> None:
        """The certificate and the wheel folder named in a pip.conf need not be named again."""
        (tmp_path / "wheels").mkdir()
        (tmp_path / "ca.pem").write_text("certificates")
        (tmp_path / "pip.conf").write_text(f"[global]\nfind-links = {tmp_path}/wheels\ncert = {tmp_path}/ca.pem\n")

        found = resolve.pip_environment(settings.load(tmp_path, {}), {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")})

        assert found == {
            "WHEELS": str(tmp_path / "wheels"),
            "CA_BUNDLE": str(tmp_path / "ca.pem"),
            "PIP_CONFIG": str(tmp_path / "pip.conf"),
        }

    def test_the_environment_beats_the_file_and_a_setting_beats_both(self, tmp_path: Path) -> None:
        """PIP_FIND_LINKS is used unless WHEELS is set."""
        (tmp_path / "links").mkdir()
        environment = {"PIP_FIND_LINKS": str(tmp_path / "links"), "PIP_CONFIG_FILE": str(tmp_path / "none")}

        assert resolve.pip_environment(settings.load(tmp_path, {}), environment)["WHEELS"] == str(tmp_path / "links")
        assert resolve.pip_environment(settings.load(tmp_path, {"WHEELS": "/w"}), environment)["WHEELS"] == "/w"


class TestLeases:
    """The folder of the leases, which is the host's."""

    def test_every_clone_means_the_same_folder(self, tmp_path: Path) -> None:
        """By default and as set; a lab for the CPU has none, and a simulated host one below its root."""
        root = make_host(tmp_path / "host", Gpu(1, 0x0300, 128))
        clones = [tmp_path / name for name in ("a", "b")]
        for clone in clones:
            clone.mkdir()
        simulated = Choice("cpu", "docker", "test", is_simulated=True)

        assert [values(clone, root)["ROCMLAB_LEASES"] for clone in clones] == ["/run/lock/rocmlab"] * 2
        assert values(tmp_path, root, LEASES_DIR="/srv/locks/")["ROCMLAB_LEASES"] == "/srv/locks"
        assert values(tmp_path, root, simulated)["ROCMLAB_LEASES"] == f"{root}/run/lock/rocmlab"
        assert "ROCMLAB_LEASES" not in values(tmp_path, root, Choice("cpu", "docker", "test"))

    def test_a_container_sees_the_limits_of_its_host(self, tmp_path: Path) -> None:
        """Where the host has that folder; own Compose files without it are rejected, as the lab would not obey."""
        root = make_host(tmp_path / "host", Gpu(1, 0x0300, 128))
        without = values(tmp_path, root)
        (root / "etc/rocmlab").mkdir(parents=True)
        found = values(tmp_path, root)
        settings.save(settings.load(tmp_path, {}), {"COMPOSE_FILE": found["COMPOSE_FILE"]})
        (tmp_path / ".env").write_text("COMPOSE_FILE=compose.yaml:docker/compose.leases.yaml\n")

        assert "ROCMLAB_LIMITS" not in without
        assert found["ROCMLAB_LIMITS"] == str(root / "etc/rocmlab")
        assert found["COMPOSE_FILE"] == "compose.yaml:docker/compose.leases.yaml:docker/compose.limits.yaml"
        assert "ROCMLAB_LIMITS" not in values(tmp_path, root, Choice("cpu", "docker", "test"))
        with pytest.raises(RocmlabError, match=r"has no docker/compose\.limits\.yaml"):
            values(tmp_path, root)

    @pytest.mark.parametrize("folder", ["locks", "./locks", "~/locks", "/", "/a:/b"])
    def test_a_folder_that_each_lab_would_read_differently_is_rejected(self, tmp_path: Path, folder: str) -> None:
        """A relative path is another one in each clone."""
        with pytest.raises(RocmlabError, match="is not an absolute path"):
            values(tmp_path, make_host(tmp_path / "host", Gpu(1, 0x0300, 128)), LEASES_DIR=folder)

    def test_own_compose_files_without_the_folder_of_leases_are_rejected(self, tmp_path: Path) -> None:
        """Such a lab would lease a GPU that another has; the fix is the line that is then accepted."""
        settings.save(settings.load(tmp_path, {}), {"COMPOSE_FILE": "compose.yaml:docker/compose.leases.yaml"})
        (tmp_path / ".env").write_text("COMPOSE_FILE=compose.yaml:mine.yaml\n")
        with pytest.raises(RocmlabError, match=r"COMPOSE_FILE=.* has no docker") as raised:
            values(tmp_path, tmp_path)

        line = raised.value.problem.fix.splitlines()[-1]
        (tmp_path / ".env").write_text(f"{line}\n")

        assert line == "COMPOSE_FILE=compose.yaml:mine.yaml:docker/compose.leases.yaml"
        assert values(tmp_path, tmp_path)["COMPOSE_FILE"] == line.removeprefix("COMPOSE_FILE=")

    def test_own_compose_files_without_the_port_for_bind_are_rejected(self, tmp_path: Path) -> None:
        """The lab would start, and not answer there."""
        settings.save(settings.load(tmp_path, {}), {"COMPOSE_FILE": "compose.yaml:docker/compose.cpu.yaml"})
        (tmp_path / ".env").write_text("COMPOSE_FILE=compose.yaml:docker/compose.cpu.yaml:mine.yaml\n")

        with pytest.raises(RocmlabError, match=r"has no docker/compose\.tls\.yaml"):
            values(tmp_path, tmp_path, Choice("cpu", "docker", "test"), BIND="127.0.0.1")

    def test_a_lab_names_its_user_and_itself(self, tmp_path: Path) -> None:
        """For those who read its leases; in the container the user has another name."""
        found = values(tmp_path, tmp_path)

        assert found["ROCMLAB_USER"] == pwd.getpwuid(os.getuid()).pw_name
        assert found["ROCMLAB_LAB"] == found["COMPOSE_PROJECT_NAME"]
