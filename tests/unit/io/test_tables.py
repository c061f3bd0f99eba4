"""Tables for people."""

from __future__ import annotations

import io

from hvd_elastic_ext.io import tables


def test_a_long_path_in_the_last_column_is_shown_to_its_end() -> None:
    path, stream = "/" + "folder/" * 30 + "000001-000004-000000120-3f2a", io.StringIO()
    tables.show(stream, ("event", "note"), [(("sealed", path), "")])
    assert path in "".join(line.split()[-1] for line in stream.getvalue().splitlines() if line.strip())
