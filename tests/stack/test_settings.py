"""Where a setting gets its value, and what becomes of what a user wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.stack import envfile, settings


def env(project: Path) -> dict[str, str]:
    """Return what `.env` says."""
    return envfile.parse((project / ".env").read_text())


class TestPrecedence:
    """Flag or environment, then `.env`, then default."""

    def test_environment_beats_file_beats_default(self, tmp_path: Path) -> None:
        """Each level is used where the one above is silent."""
        (tmp_path / ".env").write_text("PORT=9000\nGPUS=0\n")

        found = settings.load(tmp_path, {"PORT": "9001"})

        assert (found.get("PORT"), found.get("GPUS"), found.get("BACKEND")) == ("9001", "0", "auto")

    def test_a_flag_is_remembered(self, tmp_path: Path) -> None:
        """`make up PORT=9000` holds for the next `make up` too."""
        settings.save(settings.load(tmp_path, {"PORT": "9000"}), {"PORT": "9000"})

        assert settings.load(tmp_path, {}).get("PORT") == "9000"

    def test_a_flag_with_the_default_forgets_the_choice(self, tmp_path: Path) -> None:
        """`make up BACKEND=auto` takes an earlier BACKEND=cpu back."""
        settings.save(settings.load(tmp_path, {"BACKEND": "cpu"}), {})

        settings.save(settings.load(tmp_path, {"BACKEND": "auto"}), {})

        assert "BACKEND" not in env(tmp_path)
        assert settings.load(tmp_path, {}).get("BACKEND") == "auto"

    @pytest.mark.parametrize("text", ["0", "65536", "http", "-1", "8888 "])
    def test_a_port_that_is_none_is_refused(self, tmp_path: Path, text: str) -> None:
        """The error shows the offending value."""
        with pytest.raises(RocmlabError, match=f"PORT={text}"):
            settings.port_of(settings.load(tmp_path, {"PORT": text}))


class TestSave:
    """What rocmlab writes follows the machine; what a user wrote stays."""

    def test_what_rocmlab_wrote_may_change(self, tmp_path: Path) -> None:
        """A new default reaches `.env` where no one chose anything."""
        settings.save(settings.load(tmp_path, {}), {"BASE_IMAGE": "old:1"})

        settings.save(settings.load(tmp_path, {}), {"BASE_IMAGE": "new:2"})

        assert env(tmp_path)["BASE_IMAGE"] == "new:2"

    def test_an_edited_line_is_kept(self, tmp_path: Path) -> None:
        """A user changes a value that rocmlab wrote: from then on it is theirs."""
        settings.save(settings.load(tmp_path, {}), {"BASE_IMAGE": "old:1"})
        path = tmp_path / ".env"
        path.write_text(path.read_text().replace("old:1", "mine:3"))

        found = settings.load(tmp_path, {})
        settings.save(found, {"BASE_IMAGE": "new:2"})

        assert found.get("BASE_IMAGE") == "mine:3"
        assert env(tmp_path)["BASE_IMAGE"] == "mine:3"

    def test_comments_and_foreign_lines_survive(self, tmp_path: Path) -> None:
        """The file may hold anything that plain `docker compose` reads too."""
        (tmp_path / ".env").write_text("# hello\nHSA_OVERRIDE_GFX_VERSION=10.3.0\n")

        settings.save(settings.load(tmp_path, {}), {"PORT": "8888"})

        assert (tmp_path / ".env").read_text().startswith("# hello\nHSA_OVERRIDE_GFX_VERSION=10.3.0\n")

    def test_what_is_not_needed_any_more_goes(self, tmp_path: Path) -> None:
        """A variable of another backend that rocmlab wrote is removed with it."""
        settings.save(settings.load(tmp_path, {}), {"RENDER_GID": "109"})

        settings.save(settings.load(tmp_path, {}), {})

        assert "RENDER_GID" not in env(tmp_path)

    def test_nothing_to_do_writes_nothing(self, tmp_path: Path) -> None:
        """A second save leaves the very same file."""
        settings.save(settings.load(tmp_path, {}), {"PORT": "8888"})
        before = (tmp_path / ".env").stat()

        settings.save(settings.load(tmp_path, {}), {"PORT": "8888"})

        assert before.st_ino == (tmp_path / ".env").stat().st_ino

    def test_a_file_that_others_could_read_is_made_private(self, tmp_path: Path) -> None:
        """A `.env` copied from somewhere with mode 0644 becomes 0600."""
        (tmp_path / ".env").write_text("PORT=9000\n")
        (tmp_path / ".env").chmod(0o644)

        settings.save(settings.load(tmp_path, {}), {})

        assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600


class TestMemory:
    """What is a user's and what is not, when the memory of it is lost or the file comes from elsewhere."""

    def test_a_copied_env_does_not_speak_for_another_machine(self, tmp_path: Path) -> None:
        """The backend, Compose files and groups of the machine it came from are derived again; the port is kept."""
        copied = "PORT=9000\nROCMLAB_BACKEND=cpu\nCOMPOSE_FILE=compose.yaml:docker/compose.cpu.yaml\nRENDER_GID=109\n"
        (tmp_path / ".env").write_text(copied)

        found = settings.load(tmp_path, {})
        settings.save(
            found, {"PORT": "9000", "ROCMLAB_BACKEND": "rocm", "COMPOSE_FILE": "compose.yaml", "RENDER_GID": "992"}
        )

        assert found.chosen == {"PORT": "9000"}
        assert env(tmp_path)["ROCMLAB_BACKEND"] == "rocm"
        assert env(tmp_path)["COMPOSE_FILE"] == "compose.yaml"

    def test_a_copied_env_keeps_choices_and_no_defaults(self, tmp_path: Path) -> None:
        """Our own images and indexes, files that are not here and the owner's id were the other machine's."""
        (tmp_path / "mine.conf").write_text("")
        theirs = {
            "BASE_IMAGE": "docker.io/rocm/tensorflow:rocm7.2-py3.12-tf2.20-dev",
            "TORCH_INDEX": "https://download.pytorch.org/whl/rocm7.2",
            "WHEELS": "/nowhere/wheels",
            "CA_BUNDLE": "/nowhere/ca.pem",
            "NB_UID": "1234",
        }
        mine = {"PIP_CONFIG": "mine.conf", "SHM_SIZE": "2gb", "NB_GID": "4"}
        lines = [f"{name}={value}" for name, value in {"ROCMLAB_BACKEND": "rocm", **theirs, **mine}.items()]
        (tmp_path / ".env").write_text("\n".join(lines))

        assert settings.load(tmp_path, {}).chosen == mine

        (tmp_path / ".env").write_text("\n".join(lines[1:]))  # which `make up` never wrote
        assert settings.load(tmp_path, {}).chosen == {**theirs, **mine}

        (tmp_path / ".env").write_text("ROCMLAB_BACKEND=rocm\nTORCH_INDEX=\n")  # pip's own index: only Metal's default
        assert settings.load(tmp_path, {}).chosen == {"TORCH_INDEX": ""}

    @pytest.mark.parametrize("value", ["", "/", "/proc/.."])
    def test_this_machine_takes_a_simulated_host_back(self, tmp_path: Path, value: str) -> None:
        """`make up ROCMLAB_ROOT=/` means the same as the empty value, and is not remembered as a choice."""
        settings.save(settings.load(tmp_path, {"ROCMLAB_ROOT": "sim"}), {"ROCMLAB_ROOT": str(tmp_path / "sim")})
        assert settings.load(tmp_path, {}).get("ROCMLAB_ROOT") == str(tmp_path / "sim")

        found = settings.load(tmp_path, {"ROCMLAB_ROOT": value})
        settings.save(found, {})

        assert found.get("ROCMLAB_ROOT") == ""
        assert "ROCMLAB_ROOT" not in env(tmp_path)

    def test_an_empty_value_takes_a_choice_back(self, tmp_path: Path) -> None:
        """`make up BASE_IMAGE=` returns to the default, and the line follows the machine again."""
        settings.save(settings.load(tmp_path, {"BASE_IMAGE": "mine:1"}), {"BASE_IMAGE": "mine:1"})

        found = settings.load(tmp_path, {"BASE_IMAGE": ""})
        settings.save(found, {"BASE_IMAGE": "default:2"})

        assert found.get("BASE_IMAGE") == ""
        assert env(tmp_path)["BASE_IMAGE"] == "default:2"
        assert settings.load(tmp_path, {}).chosen == {}

    def test_a_removed_name_takes_its_comment_along(self, tmp_path: Path) -> None:
        """The file does not fill with explanations of what is no longer there."""
        settings.save(settings.load(tmp_path, {}), {"RENDER_GID": "109"})
        settings.save(settings.load(tmp_path, {}), {"PORT": "8888"})

        assert "numeric groups" not in (tmp_path / ".env").read_text()


def test_every_setting_says_what_holds_without_it(repository: Path) -> None:
    """It has a default, or words for what holds instead, and the page that explains it exists."""
    for setting in settings.SETTINGS:
        assert setting.default or setting.otherwise, setting.name
        assert (repository / "docs" / setting.page).exists(), setting.name


@pytest.mark.parametrize("line", ["SHARE=$HOME/data", 'SHARE="$HOME/data"', "SHARE=${HOME}/data", "export SHARE=a$b"])
def test_a_variable_in_the_env_file_is_an_error(tmp_path: Path, line: str) -> None:
    """Compose would replace it; a folder named `$HOME` was made, which someone removes with rm -r $HOME."""
    (tmp_path / ".env").write_text(f"{line}\n")

    with pytest.raises(RocmlabError, match=r"SHARE in .* has a variable"):
        settings.load(tmp_path, {})


@pytest.mark.parametrize(
    "line",
    ["SHARE='$HOME/data'", r'SHARE="\$HOME"', "SHARE=a$", "SHARE=x # $HOME", "SHARE=a$$b", "OTHER=$HOME", "SHARE=$5"],
)
def test_a_dollar_that_is_none_stays(tmp_path: Path, line: str) -> None:
    """In single quotes, behind a backslash, doubled, in a comment, or of a name that is not a setting."""
    (tmp_path / ".env").write_text(f"{line}\n")

    settings.load(tmp_path, {})


def test_the_mark_at_the_beginning_of_a_file_is_no_part_of_a_name(tmp_path: Path) -> None:
    """Some editors write it; the first setting had no effect."""
    (tmp_path / ".env").write_text("PORT=9000\n", encoding="utf-8-sig")

    assert settings.load(tmp_path, {}).get("PORT") == "9000"
