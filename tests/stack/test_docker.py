"""What the Docker lab makes of the engine's words; the engine itself is exercised in tests/container."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from demos import until
from engine_words import container
from engine_words import image as engine_image
from test_engine import docker

from benchmarks import image_size, start
from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.node.record import Record
from rocmlab.stack import gpus, image, looks, settings
from rocmlab.stack.docker import DockerLab
from rocmlab.stack.engine import Engine
from rocmlab.stack.image import BaseImageUnreachable
from rocmlab.stack.progress import BuildProgress, PullProgress

DOCKERFILE = """\
# What the base lacks.
RUN --mount=type=cache,target=/var/cache/apt \\
    apt-get -qq update
"""
BUILD = """\
#1 [internal] load build definition from Dockerfile
#7 [base 2/3] RUN --mount=type=cache,target=/var/cache/apt apt-get -qq update
#7 0.531 Get:1 something
#7 0.532 Get:2 something
#7 DONE 14.2s
#8 [base 3/3] RUN /build/user
#8 CACHED
#9 [lab 4/9] RUN --mount=type=bind pip install
#9 1.2 WARNING: Location 'x' is ignored: it is neither a file nor a directory.
#9 3.4 error: TensorFlow of this base is not built with ROCm
#9 3.5   why: tf.test.is_built_with_rocm() is False
#9 ERROR: process "/bin/sh -c pip install" did not complete successfully: exit code: 2
"""


def lab(folder: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, **values: str) -> DockerLab:
    """A Docker lab whose `docker` is a small program with recorded answers."""
    monkeypatch.setenv("PATH", environment["PATH"])
    base = {
        "ROCMLAB_BACKEND": "cpu",
        "ROCMLAB_IMAGE": "rocmlab:cpu",
        "PORT": "1",
        "JUPYTER_TOKEN": "t",
        "BASE_IMAGE": "base:1",
    }
    return DockerLab(settings.load(folder, {}), {**base, **values}, Engine(is_usable=True, root=str(folder / "absent")))


class TestBuildProgress:
    """A build's thousand lines become a few that tell something."""

    def test_each_step_is_one_line_and_long_ones_say_how_long(self) -> None:
        """Internal steps, cached ones and the programs' own output stay in the log."""
        progress = BuildProgress(DOCKERFILE)

        shown = [line for text in BUILD.splitlines() if (line := progress(text))]

        assert len(shown) == 3
        assert shown[0] == "  What the base lacks"
        assert "14 s" in shown[1]
        assert shown[2] == "  RUN pip install"

    def test_each_step_of_the_image_is_one_line_of_a_terminal(self, repository: Path) -> None:
        """What is printed is the beginning of the step's comment, up to its first colon or semicolon."""
        dockerfile = (repository / "docker/Dockerfile").read_text()
        steps = re.findall(r"^RUN .+", re.sub(r"\\\n", " ", dockerfile), flags=re.MULTILINE)

        titles = [BuildProgress(dockerfile).title(step) for step in steps]

        assert len(titles) > 10
        assert [title for title in titles if len(title) > 110] == []

    def test_the_reason_of_a_failure_is_what_the_step_said(self) -> None:
        """Pip's chatter is omitted, the sentence of the failed check is kept."""
        reason = BuildProgress().error(BUILD.splitlines())

        assert "not built with ROCm" in reason
        assert "is ignored" not in reason


class TestLooks:
    """The engine is not asked again what it has just shown."""

    @pytest.fixture
    def asked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DockerLab:
        """A lab whose engine answers with how often it was asked; it fails while there is a file `down`."""
        program, log = tmp_path / "docker", tmp_path / "asked"
        words = container("COUNT").replace("COUNT", f"'$(wc -l <{log})'")
        program.write_text(f"#!/bin/sh\necho \"$@\" >>{log}\necho '{words}'; [ ! -e {tmp_path}/down ]\n")
        program.chmod(0o755)
        return lab(tmp_path, {"PATH": f"{tmp_path}:/usr/bin:/bin"}, monkeypatch, COMPOSE_PROJECT_NAME="lab")

    @pytest.mark.parametrize("meanwhile", [("ps", "--all"), ("exec", "x", "true"), ("logs", "x")])
    def test_the_same_question_is_answered_at_once(self, asked: DockerLab, meanwhile: tuple[str, ...]) -> None:
        """Also after other questions, and after a program ran in the container."""
        first = asked.engine("ps", "--quiet")
        other = asked.engine(*meanwhile)

        assert asked.engine("ps", "--quiet") == first
        assert other != first

    @pytest.mark.parametrize("change", [("rm", "x"), ("tag", "x", "y"), ("image", "rm", "x"), ("up",), ("down",)])
    def test_what_this_process_changes_is_seen_at_once(self, asked: DockerLab, change: tuple[str, ...]) -> None:
        """Containers and images, by the engine or by Compose."""
        questions = (("ps", "--quiet"), ("inspect", "x"), ("image", "inspect", "x"))
        before = {asked.engine(*question)[1] for question in questions}
        if change == ("up",):
            asked._bring_up()
        elif change == ("down",):
            asked.stop(print)
        else:
            asked.engine(*change)

        assert len(before) == 3
        assert not before & {asked.engine(*question)[1] for question in questions}

    def test_what_failed_and_what_is_old_is_asked_again(
        self, asked: DockerLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An engine that did not answer may do so now; a container can end at any time."""
        (tmp_path / "down").touch()
        failed = asked.engine("ps")
        (tmp_path / "down").unlink()
        again = asked.engine("ps")
        monkeypatch.setattr(looks, "SECONDS", 0.0)
        looks.forget()
        third, fourth = asked.engine("ps"), asked.engine("ps")

        assert failed[0] != 0
        assert again[0] == 0
        assert third != fourth

    def test_what_was_begun_is_not_asked_again(self, asked: DockerLab, tmp_path: Path) -> None:
        """Which containers run and are left, and for the image: one call each, however often it begins."""
        asked.look_ahead()
        asked.look_ahead()
        container, image = asked.known_container(), asked.image_id(asked.image)
        asked.look_ahead()

        assert container
        assert image
        until(lambda: len((tmp_path / "asked").read_text().splitlines()) == 3)
        words = [line.split() for line in (tmp_path / "asked").read_text().splitlines()]
        assert sorted((line[0], line[-1] == "--all") for line in words) == [
            ("image", False),
            ("ps", False),
            ("ps", True),
        ]

    @pytest.mark.parametrize("reason", ["failed", "changed", "old"])
    def test_a_begun_answer_that_no_longer_counts_is_asked_again(
        self, asked: DockerLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
    ) -> None:
        """It failed, or this process changed something, or it was begun more than two seconds ago."""
        log = tmp_path / "asked"

        def count() -> int:
            return len(log.read_text().splitlines()) if log.exists() else 0

        if reason == "failed":
            (tmp_path / "down").touch()
        if reason == "old":
            monkeypatch.setattr(looks, "SECONDS", 0.0)
        asked.look_ahead()
        until(lambda: count() == 3)
        if reason == "changed":
            asked.engine("rm", "x")
        before = count()
        asked.container()

        assert count() == before + 1


class TestDockerfile:
    """What the image is built from."""

    def test_without_a_secret_no_step_may_have_one(
        self, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Some engines read the whole image before each step that may; all else of the Dockerfile stays as it is."""
        text = (repository / "docker/Dockerfile").read_text()
        (tmp_path / "project/docker").mkdir(parents=True)
        (tmp_path / "project/docker/Dockerfile").write_text(text)
        found = lab(tmp_path / "project", docker(tmp_path, info=engine_image()), monkeypatch)

        found.prepare(lambda _: None, always=True)

        built = Path(found.environment["ROCMLAB_DOCKERFILE"]).read_text()
        assert text.count("type=secret") > 10
        assert "type=secret" not in built
        words = [each for each in text.split() if not each.startswith("--mount=type=secret,")]
        assert [each for each in words if each != "\\"] == [each for each in built.split() if each != "\\"]
        assert not re.search(r"\\\s*\\\n|\\\n\s*\n", built), "no line continues in nothing"

    @pytest.mark.parametrize("name", ["CA_BUNDLE", "PIP_CONFIG"])
    def test_with_a_secret_it_is_the_projects(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """The steps that install have it."""
        (tmp_path / "project/docker").mkdir(parents=True)
        (tmp_path / "project/docker/Dockerfile").write_text(DOCKERFILE)
        found = lab(tmp_path / "project", docker(tmp_path, info=engine_image()), monkeypatch, **{name: "/a/file"})

        found.prepare(lambda _: None, always=True)

        assert "ROCMLAB_DOCKERFILE" not in found.environment


def test_a_pull_counts_its_layers() -> None:
    """One line for each layer that is complete."""
    lines = [
        "0123456789ab: Pulling fs layer",
        "ba9876543210: Pulling fs layer",
        "0123456789ab: Pull complete",
        "Status: done",
    ]
    progress = PullProgress()

    assert [shown for line in lines if (shown := progress(line))] == ["  1 of 2 layers"]


class TestBaseImage:
    """A base image that could not be pulled."""

    def test_no_registry_is_told_from_no_such_image(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a registry a host without GPU can continue natively; a wrong name must be fixed by the user."""
        program = docker(tmp_path, info="", code=1, error="dial tcp: lookup registry: no such host")
        with pytest.raises(BaseImageUnreachable):
            lab(tmp_path, program, monkeypatch).prepare(lambda _: None)

        program = docker(tmp_path, info="", code=1, error="manifest unknown")
        with pytest.raises(RocmlabError) as caught:
            lab(tmp_path, program, monkeypatch).prepare(lambda _: None)
        assert not isinstance(caught.value, BaseImageUnreachable)
        assert "manifest unknown" in caught.value.problem.why

    def test_a_full_disk_is_seen_before_the_pull(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The engine's own disk is looked at, and the problem says how much is needed."""
        found = lab(tmp_path, docker(tmp_path, info="", code=1), monkeypatch)
        found.engine_root = str(tmp_path)
        monkeypatch.setattr("rocmlab.stack.image.NEEDED_BYTES", {"cpu": 1e18})

        with pytest.raises(RocmlabError, match="GB free"):
            found.prepare(lambda _: None)

    def test_an_engine_that_names_no_disk_is_not_asked_for_its_space(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where the engine's storage is unknown, the pull itself says that the disk is full."""
        found = lab(tmp_path, docker(tmp_path, info="", code=1), monkeypatch)
        found.engine_root = ""

        found.check_disk()

    def test_debians_is_made_and_not_pulled(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """By root, with the targets of its tag; what the script says is the error, and others read the command."""
        script = tmp_path / "scripts/make-rocm-base"
        script.parent.mkdir()
        script.write_text(
            f'#!/bin/sh\necho "$ENGINE $@" >{tmp_path}/words\nprintf "error: a\\n  why: b\\n  fix: c\\n" >&2\nexit 3\n'
        )
        script.chmod(0o755)
        base = "rocmlab-debian-rocm:gfx906-gfx90a"
        found = lab(tmp_path, docker(tmp_path, info="", code=1), monkeypatch, BASE_IMAGE=base)

        monkeypatch.setattr("os.geteuid", lambda: 0)
        with pytest.raises(RocmlabError) as caught:
            found.prepare(lambda _: None)
        assert (tmp_path / "words").read_text() == f"docker {base} gfx906,gfx90a\n"
        assert (caught.value.problem.what, caught.value.problem.why) == ("a", "b")
        assert caught.value.problem.fix == f"c; complete log: {tmp_path}/.rocmlab/base.log"

        monkeypatch.setattr("os.geteuid", lambda: 1000)
        with pytest.raises(RocmlabError, match="only root can make it") as caught:
            found.prepare(lambda _: None)
        assert caught.value.problem.fix == f"sudo scripts/make-rocm-base {base} gfx906,gfx90a, then make up"


class TestPathsInside:
    """A folder of the host that a command of the lab needs: in the container it has another name."""

    @pytest.mark.parametrize("share", ["share", "./mine", "linked"])
    def test_notebooks_and_the_share_are_seen(
        self, share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also through a link, and by the container's own path, the only one of a share in a volume."""
        program = docker(tmp_path, info="")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "linked").symlink_to(tmp_path / "elsewhere")
        found = lab(tmp_path, program, monkeypatch, SHARE=share if share == "share" else str(tmp_path / share))

        assert found.seen_inside(tmp_path / "notebooks/a/.venv") == Path("/home/jovyan/work/a/.venv")
        for name in ("work/a", "share/b/.venv"):
            assert found.seen_inside(Path("/home/jovyan", name)) == Path("/home/jovyan", name)
        if share != "share":
            assert found.seen_inside(tmp_path / share / "env") == Path("/home/jovyan/share/env")
        if share == "linked":
            assert found.seen_inside(tmp_path / "elsewhere/env") == Path("/home/jovyan/share/env")

    def test_another_folder_is_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Which names both folders that the container sees; the name of a volume does not mean a folder of the host."""
        found = lab(tmp_path, docker(tmp_path, info=""), monkeypatch, SHARE="share")

        for path in (tmp_path, tmp_path / "share/env", Path("/usr"), Path("/home/jovyan/.venv"), Path("/home/jovyan")):
            with pytest.raises(RocmlabError, match="cannot be seen by the lab") as caught:
                found.seen_inside(path)
        assert str(tmp_path / "notebooks") in caught.value.problem.why
        assert "/home/jovyan/share" in caught.value.problem.fix


class TestGpuOverlay:
    """GPUS=0,2 as a Compose overlay."""

    def test_exactly_the_chosen_render_nodes_are_listed(self) -> None:
        """The list replaces the base file's and holds /dev/kfd once."""
        from hosts import device as gpu

        text = gpus.overlay(
            gpus.exactly("rocm", [gpu(0, render_node="/dev/dri/renderD128"), gpu(2, render_node="/dev/dri/renderD130")])
        )

        assert text.count("/dev/kfd") == 1
        assert "!override" in text
        assert [line.strip() for line in text.splitlines() if "renderD" in line] == [
            "- /dev/dri/renderD128",
            "- /dev/dri/renderD130",
        ]

    def test_no_gpu_keeps_the_nodes_and_hides_the_devices(self) -> None:
        """A lab for AMD GPUs refuses to start without /dev/kfd, so GPUS=none is a matter of masks."""
        text = gpus.overlay(gpus.exactly("rocm", []))

        assert "devices" not in text
        assert 'HIP_VISIBLE_DEVICES: "-1"' in text


class TestCluster:
    """A lab that CLUSTER makes a node of a cluster."""

    @pytest.mark.parametrize(("line", "is_same"), [("", True), ("CLUSTER=off", True), ("CLUSTER=head", False)])
    def test_ray_makes_another_image(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, is_same: bool
    ) -> None:
        """So that `make cluster-up` builds it, and `make cluster-down` goes back; without a cluster nothing changes."""
        before = lab(tmp_path, {"PATH": "/bin"}, monkeypatch).inputs

        (tmp_path / ".env").write_text(f"{line}\n")

        assert (lab(tmp_path, {"PATH": "/bin"}, monkeypatch).inputs == before) is is_same

    def test_apt_txt_makes_another_image(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The build gets its names; without the file nothing changes, and one that cannot be used stops `make up`."""
        before = lab(tmp_path, {"PATH": "/bin"}, monkeypatch)
        was = before.inputs
        (tmp_path / "notebooks").mkdir(exist_ok=True)
        (tmp_path / "notebooks/apt.txt").write_text("# plots\ngraphviz  # dot\nffmpeg\n")

        after = lab(tmp_path, {"PATH": "/bin"}, monkeypatch)
        assert after.inputs != was
        assert (before.environment["ROCMLAB_IMAGE_APT"], after.environment["ROCMLAB_IMAGE_APT"]) == (
            "",
            "graphviz ffmpeg",
        )
        (tmp_path / "notebooks/apt.txt").write_text("a; reboot\n")
        with pytest.raises(RocmlabError, match="line 1"):
            lab(tmp_path, {"PATH": "/bin"}, monkeypatch).prepare(print)

    def test_which_cluster_is_no_matter_of_the_image(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The head's image and a worker's are the same."""
        (tmp_path / ".env").write_text("CLUSTER=head\n")
        head = lab(tmp_path, {"PATH": "/bin"}, monkeypatch).inputs

        (tmp_path / ".env").write_text("CLUSTER=192.168.1.10:6379\n")

        assert lab(tmp_path, {"PATH": "/bin"}, monkeypatch).inputs == head

    @pytest.mark.parametrize(
        ("network", "port", "is_ours"), [("host", 8888, True), ("host", 9999, False), ("bridge", 8888, False)]
    )
    def test_in_the_hosts_network_the_lab_listens_itself(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str, port: int, is_ours: bool
    ) -> None:
        """Nothing is published there; what is on the port is the lab if it was told to listen there."""
        program = tmp_path / "docker"
        inspected = container(network=network, env=["CLUSTER=head", f"PORT={port}"])
        program.write_text(f"#!/bin/sh\ncase $1 in ps) echo abc;; inspect) echo '{inspected}';; esac\n")
        program.chmod(0o755)

        found = lab(tmp_path, {"PATH": f"{tmp_path}:/bin:/usr/bin"}, monkeypatch, PORT="8888", COMPOSE_PROJECT_NAME="x")

        assert found._publishes_port() is is_ours

    @pytest.mark.parametrize("cluster", ["off", "head"])
    @pytest.mark.parametrize(
        ("changed", "is_another"),
        [
            ({}, False),
            ({"JUPYTER_TOKEN": "x"}, True),
            ({"METRICS_TOKEN": "x"}, True),
            ({"CLUSTER_TOKEN": "b" * 64}, True),
        ],
        ids=["none", "server", "metrics", "cluster"],
    )
    def test_another_token_makes_another_container(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict, is_another: bool, cluster: str
    ) -> None:
        """Compose keeps a container whose secret alone has changed, and the old token would stay in force."""
        if cluster == "off" and "CLUSTER_TOKEN" in changed:
            is_another = False  # which no container has
        (tmp_path / ".env").write_text(f"CLUSTER={cluster}\n")
        program = tmp_path / "docker"
        inside = "t\\nm\\n" + ("a" * 64 + "\\n" if cluster == "head" else "")
        program.write_text(f"#!/bin/sh\ncase $1 in ps) echo abc;; exec) printf '{inside}';; compose) echo $*;; esac\n")
        program.chmod(0o755)
        environment = {"PATH": f"{tmp_path}:/bin:/usr/bin"}
        given = {"METRICS_TOKEN": "m", "CLUSTER_TOKEN": "a" * 64, **changed}

        found = lab(tmp_path, environment, monkeypatch, COMPOSE_PROJECT_NAME="x", **given)

        assert ("--force-recreate" in found._bring_up()[1]) is is_another

    def test_what_the_node_inside_says_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """From its record in the container, which is in the folder of the lab's user."""
        (tmp_path / ".env").write_text("CLUSTER=head\nCLUSTER_PORT=7379\n")
        said = Record(7, "ready", "172.18.0.2:7379", "172.18.0.2", 7379, is_head=True, gpus=2, simulated=True)
        program = tmp_path / "docker"
        program.write_text(
            '#!/bin/sh\ncase "$*" in ps*) echo abc;;\n'
            f"  \"exec abc cat /tmp/rocmlab-ray-1042-7379/node.json\") echo '{json.dumps(asdict(said))}';;\n"
            "  *) exit 1;; esac\n"
        )
        program.chmod(0o755)

        found = lab(tmp_path, {"PATH": f"{tmp_path}:/bin"}, monkeypatch, NB_UID="1042", COMPOSE_PROJECT_NAME="x")

        assert found.node_record() == said


class TestSizes:
    """Layers by purpose."""

    @pytest.mark.parametrize(
        ("text", "megabytes"), [("0B", 0.0), ("12.3kB", 0.0123), ("250MB", 250.0), ("1.25GB", 1250.0)]
    )
    def test_dockers_sizes_are_read(self, text: str, megabytes: float) -> None:
        """All the units that docker history prints."""
        assert start.megabytes(text) == pytest.approx(megabytes)

    def test_a_release_keeps_to_its_plan(self) -> None:
        """Every kind of image has a budget, for our layers and for all of it; a larger one is an error with numbers."""
        sizes = {"layers_mb": 400.0, "layers_torch_mb": 1200.0}

        assert set(image_size.BUDGETS) == set(image.NEEDED_BYTES)
        assert image_size.excess("cpu", "lab:cpu", sizes) == ""
        assert "have 401 MB\n  why: 400 MB are planned" in image_size.excess("cpu", "lab:cpu", {"layers_mb": 401.0})
        assert "error: lab:cpu has 9001600 MB" in image_size.excess("cpu", "lab:cpu", sizes | {"layers_base_mb": 9e6})

    def test_the_time_of_a_build_can_be_chosen(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same for two builds; anything but a number of seconds is an error before the build."""
        project = tmp_path / "project"
        (project / "docker").mkdir(parents=True)
        (project / "docker/Dockerfile").write_text(DOCKERFILE)
        found = lab(project, docker(tmp_path, info=engine_image()), monkeypatch)
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")

        found.prepare(lambda _: None, always=True)
        assert found.environment["ROCMLAB_CREATED"] == "1970-01-02T00:00:00Z"

        monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
        with pytest.raises(RocmlabError, match="SOURCE_DATE_EPOCH=yesterday is not a number"):
            found.prepare(lambda _: None, always=True)

    def test_no_budget_is_above_what_a_user_was_promised(self) -> None:
        """`make up` checks the disk for that much before it pulls or builds."""
        for kind, budget in image_size.BUDGETS.items():
            assert budget.layers_mb < budget.total_mb <= image.NEEDED_BYTES[kind] / 1e6

    @pytest.mark.parametrize(
        ("steps", "expected"),
        [
            (
                {"/build/torch 2.13.0 'index' ''": "600MB", "/build/jax ''": "0B"},
                {"layers_environments_mb": 400.0, "layers_torch_mb": 600.0},
            ),
            (
                {
                    "/build/tensorflow itself rocm & /build/torch 2.13.0 gfx1100 && /build/compile rocm": "5.2GB",
                    "/build/jax plugin": "90MB",
                    "/build/cluster on": "80MB",
                },
                {
                    "layers_environments_mb": 400.0,
                    "layers_torch_mb": 5200.0,
                    "layers_jax_mb": 90.0,
                    "layers_ray_mb": 80.0,
                },
            ),
        ],
        ids=["full", "slim"],
    )
    def test_frameworks_are_counted_apart(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: dict[str, str], expected: dict[str, float]
    ) -> None:
        """Each framework that was requested has a row of its own, and so has the base; together they are the image."""
        history = [
            {"CreatedBy": "RUN /build/package /dist", "Size": "10MB"},
            {"CreatedBy": "RUN /build/tensorflow cpu full & /build/environment /opt/torch 3.10", "Size": "400MB"},
            *({"CreatedBy": f"RUN {step}", "Size": size} for step, size in steps.items()),
            {"CreatedBy": "the base", "Size": "9GB"},
        ]
        answers = "\n".join(json.dumps(layer) for layer in history)
        program = tmp_path / "docker"
        program.write_text(f"#!/bin/sh\ncase \"$*\" in *--quiet*) echo abc;; *) cat <<'E'\n{answers}\nE\n;; esac\n")
        program.chmod(0o755)

        sizes = start.layer_sizes(lab(tmp_path, {"PATH": f"{tmp_path}:/bin:/usr/bin"}, monkeypatch))

        assert sizes == {"layers_mb": 10.0, "layers_base_mb": 9000.0, **expected}
