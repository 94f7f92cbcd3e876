from __future__ import annotations

import pytest

from ghostkv.errors import InvariantViolation
from ghostkv.protocol.archive import Archive


def test_segments_follow_each_other() -> None:
    archive = Archive().append([5, 6]).append([]).append([7])
    assert (archive.ids, archive.ends, archive.total) == ((5, 6, 7), (2, 2, 3), 3)
    assert archive.slice(1, 3) == (6, 7)
    assert archive.slice(3, 3) == ()


def test_appending_leaves_the_old_archive_alone() -> None:
    one = Archive().append([5])
    one.append([6])
    assert one == Archive((5,), (1,))


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (-1, 1), (2, 1)])
def test_a_slice_outside_is_an_error(start: int, stop: int) -> None:
    with pytest.raises(InvariantViolation, match="archive of 2"):
        Archive().append([5, 6]).slice(start, stop)
