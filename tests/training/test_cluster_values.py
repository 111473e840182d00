"""The keys and values through which the workers of a training find each other, without Ray."""

from __future__ import annotations

import asyncio

from rocmlab.training.cluster.values import Values


def test_who_waits_for_a_key_is_answered_when_it_is_there() -> None:
    """Two wait, one of them for two keys; a third does not wait at all."""

    async def scene() -> tuple[bytes | None, bool, bytes | None]:
        values = Values()
        one = asyncio.create_task(values.get("a", 10))
        both = asyncio.create_task(values.wait(["a", "b"], 10))
        await asyncio.sleep(0.01)
        await values.put("a", b"\0\xff")
        found = await one
        assert not both.done()
        await values.put("b", b"")
        return found, await both, await values.get("a", 0)

    assert asyncio.run(scene()) == (b"\0\xff", True, b"\0\xff")


def test_who_waits_too_long_is_told() -> None:
    """With None, or with False; and the others continue."""

    async def scene() -> None:
        values = Values()
        assert await values.get("a", 0.01) is None
        assert not await values.wait(["a"], 0.01)
        await values.put("a", b"1")
        assert await values.get("a", 0.01) == b"1"

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_numbers_are_added_and_values_exchanged() -> None:
    """As PyTorch's stores do it: a missing number is 0, a missing value is exchanged for nothing expected."""

    async def scene() -> None:
        values = Values()
        assert await asyncio.gather(*(values.add("n", 2) for _ in range(50))) == list(range(2, 102, 2))
        assert await values.get("n", 0) == b"100"
        assert await values.compare_and_put("x", b"", b"1") == b"1"
        assert await values.compare_and_put("x", b"0", b"2") == b"1"
        assert await values.compare_and_put("x", b"1", b"2") == b"2"
        assert await values.compare_and_put("y", b"0", b"2") == b"0"
        assert await values.count() == 2
        assert await values.check(["n", "x"])
        assert await values.delete("x")
        assert not await values.delete("x")
        assert not await values.check(["n", "x"])

    asyncio.run(scene())
