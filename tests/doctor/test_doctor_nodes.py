"""The device nodes, as the engine, this user and the lab's user meet them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from situations import TWO, Looker, fires, host, report, silent, skipped

from rocmlab.doctor import checks
from rocmlab.doctor.model import BLOCKS, WARNS
from rocmlab.doctor.situation import Node, Situation


def test_kfd_missing_on_the_host(look: Looker) -> None:
    """The driver lists GPUs and udev made no node."""
    (look.root / "dev/kfd").unlink()

    assert "udevadm trigger" in fires(look(), "dev.kfd.exists", BLOCKS).problem.fix

    (look.root / "dev/kfd").touch()
    silent(look(), "dev.kfd.exists")


def test_kfd_missing_in_the_lab_is_the_hosts_to_mend(inside: Looker) -> None:
    """Nothing inside can bring it; the finding says where to go."""
    (inside.root / "dev/kfd").unlink()

    found = fires(inside(), "dev.kfd.exists", BLOCKS)

    assert found.about == "host"
    assert "make up" in found.problem.fix
    assert "created without it" in found.problem.why


def test_a_gpu_without_render_node(tmp_path: Path) -> None:
    """The lab would silently have one GPU less."""
    root = host(tmp_path / "host", *TWO, absent=(129,))
    look = Looker(root, tmp_path / "project")

    assert "0000:06:00.0 has no /dev/dri/renderD129" in fires(look(), "dev.render", WARNS).problem.what

    (root / "dev/dri/renderD129").touch()
    silent(look(), "dev.render")


@pytest.mark.parametrize("runtime", ["docker", "native"])
def test_a_closed_node_stops_all_gpus(look: Looker, runtime: str) -> None:
    """Anyone who runs this test, root included, learns that mode 0000 is closed; `chmod` fixes it."""
    look.runtime = runtime
    node = look.root / "dev/dri/renderD129"
    node.chmod(0)

    found = fires(look(), "dev.perm", BLOCKS)
    assert "/dev/dri/renderD129 cannot be opened" in found.problem.what
    assert "every GPU" in found.problem.why
    assert any("mode 0000" in line for line in found.evidence)

    node.chmod(0o660)
    silent(look(), "dev.perm")


def given(situation: Situation, *nodes: Node) -> Situation:
    """A situation whose device nodes are these."""
    situation.given = {**situation.given, "compute_node": nodes[0], "render_nodes": list(nodes[1:])}
    return situation


def node(path: str, gid: int, mode: int = 0o660, *, error: str | None = None) -> Node:
    """A real device node, as `stat` shows it, and with which error opening it would fail."""
    return Node(path, gid, mode, 226, int(path[-3:]) if path[-1].isdigit() else 0, error)


def test_this_user_is_told_which_group_to_join(look: Looker) -> None:
    """By the host's name for it; where it has no name, one is made; where root has the nodes, udev's rule."""
    look.runtime = "native"
    (look.root / "etc").mkdir(exist_ok=True)
    (look.root / "etc/group").write_text("root:x:0:\nrender:x:992:\n")

    def closed(gid: int) -> Situation:
        return given(look(), node("/dev/kfd", gid, error="EACCES"), node("/dev/dri/renderD128", gid))

    assert "sudo usermod -aG render $USER" in fires(closed(992), "dev.perm", BLOCKS).problem.fix
    assert "sudo groupadd -g 107 render" in fires(closed(107), "dev.perm", BLOCKS).problem.fix
    assert "udevadm control --reload" in fires(closed(0), "dev.perm", BLOCKS).problem.fix


def test_the_container_needs_modes_and_not_this_users_groups(look: Looker) -> None:
    """The entry point joins the nodes' groups; it cannot help a mode that shuts the group out."""
    silent(given(look(), node("/dev/kfd", 992, error="EACCES")), "dev.perm")

    found = fires(given(look(), node("/dev/kfd", 992, 0o600), node("/dev/dri/renderD128", 992)), "dev.perm", BLOCKS)

    assert "sudo chmod g+rw /dev/kfd" in found.problem.fix


def test_a_rootless_engine_needs_this_users_groups(look: Looker) -> None:
    """`keep-groups` passes on what the user has, and no more."""
    look.runtime, look.rootless = "podman", True

    fires(given(look(), node("/dev/kfd", 992, error="EACCES")), "dev.perm", BLOCKS)
    silent(given(look(), node("/dev/kfd", 992)), "dev.perm")


@pytest.mark.parametrize(
    ("error", "what"),
    [("EPERM", "denied by the container's device cgroup"), ("EACCES", "cannot be opened by uid 1000")],
)
def test_a_refused_node_stops_the_only_gpu(inside: Looker, error: str, what: str) -> None:
    """The cgroup's refusal and the mode's have different causes."""
    kfd = node("/dev/kfd", 992)

    found = fires(given(inside(uid=1000), kfd, node("/dev/dri/renderD128", 992, error=error)), "dev.perm", BLOCKS)
    assert what in found.problem.what
    assert f"/dev/dri/renderD128 group 992 mode 0660: {error}" in found.evidence

    silent(given(inside(uid=1000), kfd, node("/dev/dri/renderD128", 992)), "dev.perm")


def test_one_denied_node_of_two_is_a_warning(inside: Looker) -> None:
    """The other GPU computes; without /dev/kfd none does."""
    first, second = node("/dev/dri/renderD128", 992), node("/dev/dri/renderD129", 992, error="EPERM")

    found = fires(given(inside(), node("/dev/kfd", 992), first, second), "dev.perm", WARNS)
    assert "renderD129 is denied" in found.problem.what
    fires(given(inside(), node("/dev/kfd", 992, error="EPERM"), first, second), "dev.perm", BLOCKS)


def test_no_node_is_opened_that_may_be_opened(inside: Looker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening would wake a sleeping GPU; that it may be opened is known by asking."""
    opened: list[str] = []
    really = os.open
    monkeypatch.setattr("rocmlab.devices.roots.is_simulated", lambda _: False)
    monkeypatch.setattr(
        os, "open", lambda path, *more, **named: opened.append(str(path)) or really(path, *more, **named)
    )

    silent(inside(uid=1000), "dev.perm")

    nodes = str(inside.root / "dev")
    assert [path for path in opened if path.startswith((nodes, "/dev/kfd", "/dev/dri"))] == []


def test_groups_are_compared_by_number(inside: Looker) -> None:
    """The lab's user lacks the group of one node; with it, all is well; root needs none."""
    nodes = node("/dev/kfd", 61104), node("/dev/dri/renderD128", 61992)

    found = fires(given(inside(uid=1000, groups=frozenset({100, 61104})), *nodes), "container.gid_mismatch", BLOCKS)
    assert "group 61992" in found.problem.what
    assert "--group-add 61992" in found.problem.fix
    assert "groups of this process: 100,61104" in found.evidence

    silent(given(inside(uid=1000, groups=frozenset({100, 61104, 61992})), *nodes), "container.gid_mismatch")
    silent(given(inside(uid=0, groups=frozenset({0})), *nodes), "container.gid_mismatch")


def test_a_group_that_would_not_help_is_not_asked_for(inside: Looker) -> None:
    """Mode 0600 is dev.perm's to tell."""
    nodes = node("/dev/kfd", 61104, 0o600), node("/dev/dri/renderD128", 61992)

    silent(given(inside(uid=1000, groups=frozenset({100, 61992})), *nodes), "container.gid_mismatch")


def test_a_closed_node_of_a_simulated_lab_is_the_hosts_to_mend(inside: Looker) -> None:
    """Nothing can be changed from inside a container."""
    (inside.root / "dev/dri/renderD129").chmod(0)

    found = fires(inside(), "dev.perm", BLOCKS)

    assert found.about == "host"
    assert "usermod" not in found.problem.fix


def test_nodes_that_everybody_may_open_need_no_group(inside: Looker) -> None:
    """As CDI makes them: mode 0666."""
    silent(given(inside(uid=1000, groups=frozenset({100})), node("/dev/kfd", 0, 0o666)), "container.gid_mismatch")


def numbers(root: Path, path: str) -> dict[str, object]:
    """A node as the lab reports it: the numbers are those of the file's device."""
    found = os.stat(root / path.lstrip("/"))
    return {
        "path": path,
        "gid": found.st_gid,
        "mode": stat.S_IMODE(found.st_mode),
        "major": os.major(found.st_rdev),
        "minor": os.minor(found.st_rdev),
    }


def test_a_container_from_before_the_driver_was_loaded_again(look: Looker) -> None:
    """Its /dev/kfd has another device number than the host's; a new container has the same."""
    same = numbers(look.root, "/dev/kfd")
    older = {**same, "major": 243}

    found = fires(look(lab_report=report(nodes=[older])), "cgroup", BLOCKS)
    assert "/dev/kfd: host 0:0, lab 243:0" in found.evidence
    assert "make down && make up" in found.problem.fix

    silent(look(lab_report=report(nodes=[same])), "cgroup")


@pytest.mark.parametrize(("file", "version"), [("cgroup.controllers", "v2"), ("devices", "v1")])
def test_the_version_of_cgroups_is_shown(look: Looker, file: str, version: str) -> None:
    """It decides where a refusal shows."""
    (look.root / "sys/fs/cgroup").mkdir(parents=True)
    (look.root / "sys/fs/cgroup" / file).touch()

    assert f"cgroup {version}" in silent(look(), "cgroup").evidence[0]


def test_checks_for_the_inside_say_so_on_the_host(look: Looker) -> None:
    """They are listed, and do not pretend to have looked."""
    assert skipped(look(), "container.gid_mismatch") == "checked inside the lab"
    assert all(check.sides for check in checks.ALL)
