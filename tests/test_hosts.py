"""Which `Host` headers the lab answers, and what ALLOWED_HOSTS and LAB_BASE_URL may say."""

from __future__ import annotations

import pytest

from rocmlab.base import hosts
from rocmlab.base.errors import RocmlabError

OURS = (
    "localhost",
    "localhost:8888",
    "LocalHost",
    "127.0.0.1",
    "127.0.0.1:8888",
    "127.8.9.1",
    "[::1]",
    "[::1]:8888",
    "[0:0:0:0:0:0:0:1]:1",
)
NOT_OURS = (
    "",
    " ",
    "evil.example",
    "evil.example:8888",
    "127.0.0.1.evil.example",
    "127.0.0.1.",
    "localhost.",
    "localhost.evil.example",
    "evil.example@localhost",
    "localhost@evil.example",
    "localhost, evil.example",
    "localhost evil.example",
    "localhost:8888:8888",
    "localhost:",
    "localhost:x",
    "localhost/",
    "0.0.0.0",
    "[::]",
    "10.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "[::1",
    "::1]",
    "[fe80::1%lo]",
    "[localhost]",
    "lab",
    "lab:8888",
    "*",
)


@pytest.mark.parametrize("header", OURS)
def test_the_loopback_is_always_answered(header: str) -> None:
    """By name and by address, with and without a port."""
    assert hosts.is_allowed(header)


@pytest.mark.parametrize("header", NOT_OURS)
def test_every_other_name_is_rejected(header: str) -> None:
    """A name that only resembles ours, and an address that is not the loopback's, are other names."""
    assert not hosts.is_allowed(header)


@pytest.mark.parametrize(
    "header", ["lab.example.org", "LAB.example.org:443", "192.168.1.20:80", "[2001:db8::1]:8888", "[2001:DB8:0::1]"]
)
def test_a_proxy_s_names_and_addresses_can_be_allowed(header: str) -> None:
    """However the address is written; nothing next to them becomes allowed."""
    allowed = hosts.parse(" Lab.example.org, 192.168.1.20,2001:db8:0:0::1 ,")

    assert hosts.is_allowed(header, allowed)
    assert not hosts.is_allowed(header)
    assert not hosts.is_allowed("x.lab.example.org", allowed)
    assert not hosts.is_allowed("192.168.1.21", allowed)


@pytest.mark.parametrize("bind", ["0.0.0.0", "::"])
def test_on_all_addresses_any_number_is_this_host_and_no_other_name(bind: str) -> None:
    """The browser went to that number, whereas a name may have been pointed here."""
    allowed = hosts.parse(f"{bind},gpu1")

    assert hosts.is_allowed("192.168.1.20:8443", allowed)
    assert hosts.is_allowed("[2001:db8::1]:8443", allowed)
    assert hosts.is_allowed("gpu1:8443", allowed)
    assert not hosts.is_allowed("evil.example:8443", allowed)
    assert not hosts.is_allowed("192.168.1.20.evil.example", allowed)


@pytest.mark.parametrize(
    "text",
    ["*", "https://lab.example.org", "lab.example.org:443", "lab.example.org/", "a b", "*.example.org", "-a", "a..b"],
)
def test_what_is_not_a_name_is_an_error(text: str) -> None:
    """A wildcard would allow what the check is against; the error shows the value."""
    with pytest.raises(RocmlabError) as caught:
        hosts.parse(text)

    assert repr(text) in caught.value.problem.what
    assert caught.value.problem.fix.startswith("make up ALLOWED_HOSTS=")


@pytest.mark.parametrize(
    ("text", "path"),
    [("", "/"), ("/", "/"), ("lab1", "/lab1/"), ("/lab1/", "/lab1/"), ("/user/ann_b.c", "/user/ann_b.c/")],
)
def test_the_base_url_has_a_slash_at_both_ends(text: str, path: str) -> None:
    """However it was typed."""
    assert hosts.parse_base_url(text) == path


@pytest.mark.parametrize(
    "text",
    [
        "//evil.example/",
        "//",
        "/a//b/",
        "../x",
        "/a/../b",
        "/.git",
        "https://x/",
        "/a b/",
        "/a?b",
        "/a#b",
        "/%2e/",
        "/a\n",
    ],
)
def test_a_base_url_that_is_no_path_is_an_error(text: str) -> None:
    """What a browser or a proxy would read as another host or folder."""
    with pytest.raises(RocmlabError, match="invalid LAB_BASE_URL") as caught:
        hosts.parse_base_url(text)

    assert caught.value.problem.fix == "make up LAB_BASE_URL=/lab1/"
