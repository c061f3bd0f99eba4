"""What is said before anything is downloaded."""

import json

from tooling.pip_plan import Plan, describe, parse_report


def report(*packages: tuple[str, str]) -> str:
    return json.dumps({"install": [{"metadata": {"name": name, "version": version}} for name, version in packages]})


def test_every_package_is_named_with_its_version() -> None:
    text = describe(parse_report(report(("torch", "2.13.0+cpu"), ("numpy", "2.4.6"))), own="ours")
    assert "2 packages" in text
    assert "numpy 2.4.6, torch 2.13.0+cpu" in text
    assert "ATTENTION" not in text


def test_cuda_packages_give_a_warning_with_the_remedy() -> None:
    text = describe(Plan((("nvidia-cublas", "13"), ("torch", "2.13.0"), ("triton", "3"))), own="ours")
    assert "ATTENTION" in text
    assert "2 of these packages are CUDA" in text
    assert "make setup TORCH_INDEX=URL" in text
    assert "pytorch.org" in text


def test_the_project_itself_is_no_download() -> None:
    assert describe(Plan((("ours", "0.1"),)), own="ours").startswith("Nothing to download")
