"""Where the lab's user is at home, and whose files those on the share are."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from containers import Container, docker, own

pytestmark = pytest.mark.container
HOME = "/home/jovyan/share/home"
LISTS = "/usr/share/rocmlab/matplotlib"
DEJAVU = "matplotlib/mpl-data/fonts/ttf/DejaVuSans.ttf"
PERSISTS = """
set -e
mkdir -p ~/.ssh ~/.config/git ~/.jupyter/lab/user-settings
echo key > ~/.ssh/id_test; chmod 600 ~/.ssh/id_test
git config --global user.name "A User"
echo '{"theme": "dark"}' > ~/.jupyter/lab/user-settings/mine.json
"""
FONTS = """
import json, logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
from matplotlib import font_manager
print(json.dumps([font.fname for font in font_manager.fontManager.ttflist]))
"""
BOMB = """
import subprocess
subprocess.Popen(["bash", "-c", "bomb() { bomb | bomb & }; bomb; wait"], stderr=subprocess.DEVNULL)
"""


@pytest.fixture
def volume() -> Iterator[str]:
    """A new, empty volume."""
    name = docker("volume", "create").strip()
    yield name
    docker("volume", "rm", "--force", name)


def owners(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return owner, group and mode of everything below a folder, itself included; links are not followed."""
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        facts = path.lstat()
        found[str(path.relative_to(folder))] = (facts.st_uid, facts.st_gid, facts.st_mode)
    return found


class TestHome:
    """The home is on the share, and what is above work/ and share/ is root's."""

    def test_what_a_user_keeps_at_home_outlives_the_container(self, image: str, volume: str) -> None:
        """Settings, keys, git's configuration and the shell's history are there again in another container."""
        mount = f"--volume={volume}:/home/jovyan/share"
        with Container(image, mount) as first:
            first.wait_for_server()
            first.as_lab_user("bash", "-c", PERSISTS)
            docker("kill", first.id)
        with Container(image, mount) as second:
            second.wait_for_server()
            seen = second.as_lab_user(
                "bash", "-c", "cat ~/.ssh/id_test; git config user.name; stat -c %a ~ ~/.ssh/id_test"
            )
            passwd = second.exec("getent", "passwd", "jovyan")
            theme = second.as_lab_user("cat", f"{HOME}/.jupyter/lab/user-settings/mine.json")

        assert seen.split("\n")[:4] == ["key", "A User", "700", "600"]
        assert passwd.split(":")[5] == HOME  # which ssh reads
        assert json.loads(theme) == {"theme": "dark"}

    def test_plots_find_the_fonts_of_the_image_and_the_users_own(self, image: str, volume: str, tmp_path: Path) -> None:
        """The first plot waits for no list of fonts; new ones in the image or at home are found at the next start.

        Matplotlib makes the list once: a share would keep that of its first image for ever.
        """
        mount = f"--volume={volume}:/home/jovyan/share"

        def start(*options: str, kernel: str = "torch", first: str = ":") -> str:
            command = f"{first} && exec /opt/{kernel}/bin/python -c '{FONTS}'"
            return docker("run", "--rm", mount, *options, image, "bash", "-c", command)

        fresh = [start(kernel="tensorflow"), start()]
        lists = docker("run", "--rm", "--entrypoint=bash", image, "-c", f"cd {LISTS}; ls; cat *")
        name, _, text = lists.partition("\n")
        fonts = json.loads(text)
        dropped = fonts["ttflist"].pop()["fname"]
        (tmp_path / name).write_text(json.dumps(fonts))
        for path in (tmp_path, tmp_path / name):
            path.chmod(0o755)
        upgraded = start(f"--volume={tmp_path}:{LISTS}:ro")
        mine = f"{HOME}/.local/share/fonts/mine.ttf"
        start(first=f"mkdir -p ~/.local/share/fonts && cp /opt/torch/lib/python3*/site-packages/{DEJAVU} {mine}")
        own_fonts = [start(), start()]

        assert not [printed for printed in fresh if "generated new fontManager" in printed]
        assert dropped in fresh[0]
        assert dropped not in upgraded
        assert "generated" in own_fonts[0]
        assert mine in own_fonts[0]
        assert dropped in own_fonts[0]
        assert "generated" not in own_fonts[1]
        assert mine in own_fonts[1]

    def test_an_image_without_a_list_of_fonts_starts(self, image: str) -> None:
        """And waits for nothing that it could read: a program may have the lab's input open."""
        command = ["docker", "run", "--rm", "--interactive", f"--tmpfs={LISTS}", image, "true"]

        with subprocess.Popen(command, stdin=subprocess.PIPE) as started:  # which stays open
            try:
                assert started.wait(60) == 0
            finally:
                started.kill()

    def test_a_killed_container_loses_no_line_of_a_shell(self, image: str, volume: str) -> None:
        """The history is written with each prompt; a shell starts in work/."""
        mount = f"--volume={volume}:/home/jovyan/share"
        typed = "bash -i <<< $'echo typed\\npwd\\necho next\\nkill -9 $$'"
        with Container(image, mount) as container:
            container.wait_for_server()
            printed = container.as_lab_user(
                "bash", "-c", f"cd /home/jovyan; HISTFILE=~/.bash_history; {typed} 2>&1 || true"
            )
            history = container.as_lab_user("bash", "-c", "cat ~/.bash_history")

        assert "/home/jovyan/work" in printed
        assert "echo typed" in history

    def test_nothing_can_be_saved_at_the_top_level(self, lab: Container) -> None:
        """The server answers with what to do, the shell with permission denied; only work/ and share/ are shown."""
        status, answer = lab.request("/api/contents/", token=lab.token, method="POST", body={"type": "notebook"})
        listed = json.loads(lab.request("/api/contents/", token=lab.token)[1])["content"]
        saved, _ = lab.request("/api/contents/work", token=lab.token, method="POST", body={"type": "notebook"})

        assert status == 403
        assert "Open the folder work" in answer
        assert saved == 201
        assert {entry["name"] for entry in listed} == {"work", "share"}
        with pytest.raises(RuntimeError, match="Permission denied"):
            lab.as_lab_user("touch", "/home/jovyan/note")

    def test_generated_kernels_are_not_at_home(self, lab: Container) -> None:
        """They end with the container; one of an earlier lab at home is removed, and a user's own stays and wins."""
        script = """
kernels=~/.local/share/jupyter/kernels; mkdir -p $kernels
cp -r $ROCMLAB_KERNELS/torch $kernels/torch-gpu7
cp -r $ROCMLAB_KERNELS/torch $kernels/mine
cp -r $ROCMLAB_KERNELS/torch $kernels/tensorflow; cd $kernels/tensorflow
sed -i 's/"rocmlab": {/"other": {/; s/"display_name": "[^"]*"/"display_name": "Of the user"/' kernel.json
rocmlab kernels install 2>&1; ls $kernels
"""
        try:
            printed = lab.as_lab_user("bash", "-c", script)
            specs = json.loads(lab.request("/api/kernelspecs", token=lab.token)[1])["kernelspecs"]
        finally:
            lab.as_lab_user("bash", "-c", "rm -r ~/.local/share/jupyter/kernels; rocmlab kernels install")

        assert re.search("removed: .*torch-gpu7", printed)
        assert printed.split()[-2:] == ["mine", "tensorflow"]
        assert specs["torch"]["resources"]["logo-svg"].startswith("/kernelspecs/torch")
        assert specs["tensorflow"]["spec"]["display_name"] == "Of the user"

    @pytest.mark.long
    def test_packages_of_another_image_are_kept_and_not_used(self, image: str, volume: str) -> None:
        """`pip install --user` for one interpreter cannot shadow another's packages after an upgrade."""
        mount = f"--volume={volume}:/home/jovyan/share"
        plant = "mkdir -p ~/.local/lib/python3.11/site-packages ~/.local/python/0ld"
        with Container(image, mount) as first:
            first.wait_for_server()
            first.as_lab_user("bash", "-c", plant)
        with Container(image, mount) as second:
            second.wait_for_server()
            base = second.as_lab_user("/usr/bin/python3", "-m", "site", "--user-base").strip()
            log = second.logs()

        assert base.startswith(f"{HOME}/.local/python/")
        assert "0ld" not in base
        assert f"{HOME}/.local/lib/python3.11/" in log
        assert f"{HOME}/.local/python/0ld/" in log

    def test_a_hub_gives_each_user_a_home(self, image: str, tmp_path: Path) -> None:
        """Where one share is that of all users, ROCMLAB_HOME keeps their settings and keys apart."""
        for name in ("own", "share"):
            (tmp_path / name).mkdir()
            own(image, tmp_path / name, 1000, 100)
        mounts = [f"--volume={tmp_path}/own:/home/jovyan", f"--volume={tmp_path}/share:/home/jovyan/share"]
        options = ["run", "--rm", "--user=1000:100", "--env=ROCMLAB_HOME=/home/jovyan", *mounts]

        printed = docker(*options, image, "bash", "-c", "echo $HOME; touch ~/.mine")

        assert printed == "/home/jovyan\n"
        assert (tmp_path / "own/.mine").exists()
        assert not (tmp_path / "share/home").exists()


class TestOwners:
    """The owner and the mode of what exists never change."""

    def test_a_folder_of_roots_is_used_and_not_changed(self, image: str, tmp_path: Path) -> None:
        """SHARE=/folder with a key that only root reads: the lab gets folders of its own next to it, and starts."""
        (tmp_path / "key").write_text("secret")
        (tmp_path / "key").chmod(0o600)
        (tmp_path / "deep").mkdir()
        (tmp_path / "deep/file").touch()
        (tmp_path / "data").symlink_to("/etc")
        tmp_path.chmod(0o755)
        own(image, tmp_path, 0, 0)
        before = owners(tmp_path)

        with Container(image, f"--volume={tmp_path}:/home/jovyan/share") as container:
            container.wait_for_server()
            made = container.exec("stat", "-c", "%u %a", "/home/jovyan/share/runs", HOME).splitlines()
            etc = container.exec("stat", "-c", "%u %a", "/etc").strip()
            with pytest.raises(RuntimeError, match="Permission denied"):
                container.as_lab_user("cat", "/home/jovyan/share/key")

        after = owners(tmp_path)
        assert made == ["1000 775", "1000 700"]
        assert etc == "0 755"
        assert {name: after[name] for name in before} == before

    def test_a_folder_that_the_engine_has_just_made_is_handed_over(self, image: str, tmp_path: Path) -> None:
        """Docker creates a missing folder as root's and empty; the lab can use it, and notebooks in one too."""
        mounts = [f"--volume={tmp_path}/{name}:/home/jovyan/{name}" for name in ("share", "work")]
        with Container(image, *mounts) as container:
            container.wait_for_server()

        assert {(tmp_path / name).stat().st_uid for name in ("share", "work", "share/home")} == {1000}

    @pytest.mark.parametrize(
        ("mounted", "name", "fix"),
        [("work", ".", "NOTEBOOKS_DIR"), ("share", "runs", "SHARE"), ("share", "home", "SHARE")],
    )
    def test_what_the_lab_cannot_use_is_an_error(
        self, image: str, tmp_path: Path, mounted: str, name: str, fix: str
    ) -> None:
        """Root's notebooks folder, or a folder of root's in the place of the lab's: it does not start, and says why."""
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "mine.ipynb").write_text("{}")
        (tmp_path / name).chmod(0o755)
        tmp_path.chmod(0o755)
        own(image, tmp_path, 0, 0)
        before = owners(tmp_path)

        with Container(image, f"--volume={tmp_path}:/home/jovyan/{mounted}") as container:
            code, log = container.wait(), container.logs()

        after = owners(tmp_path)
        assert code == 2
        assert "cannot be written by uid 1000" in log
        assert "sudo chown 1000" in log
        assert f"make up {fix}=" in log
        assert {path: after[path] for path in before} == before

    def test_another_users_folder_names_the_uid(self, image: str, tmp_path: Path) -> None:
        """NB_UID is the way in where another user owns the share."""
        (tmp_path / "file").touch()
        tmp_path.chmod(0o755)
        own(image, tmp_path, 4321, 4321)

        with Container(image, f"--volume={tmp_path}:/home/jovyan/share") as container:
            code, log = container.wait(), container.logs()

        assert code == 2
        assert "make up NB_UID=4321" in log

    def test_notebooks_may_be_read_only(self, image: str, tmp_path: Path) -> None:
        """A folder that is mounted read-only on purpose is shown, and the lab starts."""
        (tmp_path / "lesson.ipynb").write_text("{}")

        with Container(image, f"--volume={tmp_path}:/home/jovyan/work:ro") as container:
            container.wait_for_server()


def processes(container: Container) -> int:
    """Return how many processes a container has, without needing one more in it."""
    return len(docker("top", container.id, "-eo", "pid").splitlines()) - 1


def until(count: Callable[[], int], is_enough: Callable[[int], bool], seconds: float) -> int:
    """Wait until a count is as wanted, and return it; the last one where time is up."""
    deadline = time.monotonic() + seconds
    while not is_enough(found := count()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def test_a_fork_bomb_ends_with_its_kernel(image: str) -> None:
    """At the limit of processes host and server answer, the kernel can be shut down, and a new one computes."""
    with Container(image, "--pids-limit=200") as container:
        container.wait_for_server()
        idle = processes(container)
        container.server.execute("torch", BOMB, keep=True)
        most = until(lambda: processes(container), lambda count: count > 120, 20)
        kernel = json.loads(container.request("/api/kernels", token=container.token)[1])[0]["id"]
        # A request that needs a thread when there is no room for one is an error 500, and is retried.
        listed = until(
            lambda: container.request("/api/contents/work", token=container.token)[0], lambda status: status == 200, 60
        )
        ended = container.request(f"/api/kernels/{kernel}", token=container.token, method="DELETE")[0]
        left = until(lambda: processes(container), lambda count: count <= idle + 2, 20)
        printed = container.execute("torch", "print(6 * 7)")

    assert most > 120
    assert (listed, ended) == (200, 204)
    assert left <= idle + 2
    assert printed == "42\n"
