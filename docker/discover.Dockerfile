# The discovery daemon alone, with all its sources: no torch, no Horovod, no compiler.
#   docker build -f docker/discover.Dockerfile -t hvd-discover .
FROM python:3.12-slim AS build
WORKDIR /src
COPY constraints.txt setup.py pyproject.toml README.md ./
COPY examples ./examples
COPY docker/manifests ./docker/manifests
COPY hvd_elastic_ext ./hvd_elastic_ext
COPY discover ./discover
RUN python -m venv /opt/hvd \
    && /opt/hvd/bin/pip install --no-cache-dir -c constraints.txt pip setuptools wheel \
    && /opt/hvd/bin/pip install --no-cache-dir -c constraints.txt --no-build-isolation ".[kubernetes]"

FROM python:3.12-slim
COPY --from=build /opt/hvd /opt/hvd
# Runs with a read-only root: it writes to the hosts file's directory only, which is to be a volume.
ENV PATH=/opt/hvd/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
ENTRYPOINT ["hvd-discover"]
