"""What the launcher decides, and the reasons it gives."""

import pytest

from hvd_elastic_ext.launcher.plan import World, describe_resize, must_tell


@pytest.mark.parametrize(
    ("before", "after", "failed", "cooled", "cause", "added", "removed"),
    [
        (None, {"a": 2}, (), (), "start", ("a",), ()),
        ({"a": 1}, {"a": 1, "b": 1}, (), (), "hosts added", ("b",), ()),
        ({"a": 1}, {"a": 2}, (), (), "hosts added", ("a",), ()),
        ({"a": 1, "b": 1}, {"a": 1}, (), (), "hosts removed", (), ("b",)),
        ({"a": 2}, {"a": 1}, (), (), "hosts removed", (), ("a",)),
        ({"a": 1, "b": 1}, {"a": 1, "c": 1}, (), (), "hosts changed", ("c",), ("b",)),
        ({"a": 1, "b": 1}, {"a": 1}, ("b",), (), "worker failed", (), ("b",)),
        ({"a": 1, "b": 1}, {"a": 1, "c": 1}, ("b",), (), "worker failed", ("c",), ("b",)),
        ({"a": 1}, {"a": 1, "b": 1}, (), ("b",), "cooldown over", ("b",), ()),
        ({"a": 1}, {"a": 1, "b": 1, "c": 1}, (), ("b",), "hosts added", ("b", "c"), ()),
        ({"a": 1}, {"a": 1}, (), (), "formed again", (), ()),
    ],
)
def test_a_new_world_tells_what_changed_and_why(
    before: World | None,
    after: World,
    failed: tuple[str, ...],
    cooled: tuple[str, ...],
    cause: str,
    added: tuple[str, ...],
    removed: tuple[str, ...],
) -> None:
    resize = describe_resize(before, after, failed=failed, cooled_down=cooled)
    assert (resize.cause, resize.added, resize.removed) == (cause, added, removed)
    assert resize.size == sum(after.values())


A, AB = {"a": 1}, {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("actual", "desired", "told", "tell", "reason"),
    [
        ({}, AB, None, False, "no world yet"),
        (A, A, None, False, "as desired"),
        (A, AB, None, True, "do not know"),
        (A, AB, (2, AB, 100.0), True, "do not know"),  # told, but in an earlier generation
        (A, AB, (3, {"a": 1, "c": 1}, 100.0), True, "do not know"),  # told of another world
        (A, AB, (3, AB, 99.0), False, "were told"),
        (A, AB, (3, AB, 95.0), True, "have not acted"),
        (AB, {}, None, True, "do not know"),  # too few slots: they must come and wait
    ],
)
def test_workers_are_told_until_they_act(
    actual: World, desired: World, told: tuple[int, World, float] | None, tell: bool, reason: str
) -> None:
    said, why = must_tell(now=100.0, generation=3, actual=actual, desired=desired, told=told, again_after_s=5.0)
    assert said is tell
    assert reason in why
