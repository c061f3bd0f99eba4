"""What is wrong in a file of options, in plain words."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.config_file import documents, read_config


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("np: 2\nhosts: [a, b\n", "line 2, column 8: a list has no ']' or lacks a ','; the list begins there"),
        ("np: {b: 1\n", "line 1, column 5: a table has no '}' or lacks a ','; the table begins there"),
        ("np: 2\njob: 'x\n", "line 2, column 6: a quoted text has no closing quote; the text begins there"),
        ("job: a: b\n", "line 1, column 7: there is a ':' where a name cannot be; check the indentation"),
        (
            "np: 2\n\tjob: x\n",
            "line 2, column 1: indent with spaces, not tabs",
        ),
        ("np: 2\n- b\n", "line 2, column 1: this is not NAME: VALUE; check the indentation"),
        ("- a\nnp: 2\n", "line 2, column 1: a list and a table are mixed; check the indentation"),
        ("job: @x\n", "line 1, column 6: a value cannot begin with this character; indent with spaces, not tabs"),
        ("np: ]\n", "line 1, column 5: a value is missing, or a bracket is one too many"),
        ("hosts: *all\n", "line 1, column 8: the alias has no anchor; quote a value that begins with '*'"),
        ("job: !x 1\n", "line 1, column 6: a value begins with '!', which is a tag of YAML; quote the value"),
        ('job: "\\q"\n', "line 1, column 7: a text in double quotes has an unknown backslash sequence"),
        ("job: a\0b\n", "unacceptable character #x0000"),
    ],
)
def test_broken_yaml_is_told_by_line_and_column_in_plain_words(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        read_config(file)
    assert str(error.value).startswith(f"--config {file}: {told}")
    assert "unicode string" not in str(error.value)
    with pytest.raises(UsageError, match=r"^f\.yaml: "):
        documents(text, where="f.yaml")
