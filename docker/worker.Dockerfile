# Launcher and worker: hvd-elastic, Horovod built by this project's own script, and sshd for workers on other machines
# (which `--rsh pod` does without).
#   docker build -f docker/worker.Dockerfile -t hvd-elastic-worker .
# For GPUs give a CUDA development image with Python 3.10 or newer as BASE, and BUILD_OPTIONS=--cuda.
# For TensorFlow beside torch give its package as TENSORFLOW: tensorflow-cpu, or tensorflow.
ARG BASE=debian:12-slim

FROM ${BASE} AS build
ARG TORCH_INDEX=""
ARG TENSORFLOW=""
ARG BUILD_OPTIONS=""
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ gcc make cmake python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY constraints.txt ./
COPY scripts ./scripts
RUN python3 -m venv /opt/hvd \
    && /opt/hvd/bin/pip install --no-cache-dir -c constraints.txt pip setuptools wheel \
    && /opt/hvd/bin/pip install --no-cache-dir -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
        torch numpy ${TENSORFLOW:+"$TENSORFLOW"}
# Keras 2, whose optimizers Horovod knows. Without what it demands: the package tensorflow, even beside tensorflow-cpu.
RUN [ -z "$TENSORFLOW" ] || /opt/hvd/bin/pip install --no-cache-dir -c constraints.txt --no-deps tf-keras
# hadolint ignore=DL3042,SC2086
RUN XDG_CACHE_HOME=/cache scripts/build-horovod --python /opt/hvd/bin/python --out /wheels \
        ${TENSORFLOW:+--with tensorflow} ${BUILD_OPTIONS} \
    && /opt/hvd/bin/pip install --no-cache-dir -c constraints.txt /wheels/*.whl \
    && rm -rf /cache
COPY setup.py pyproject.toml README.md ./
COPY examples ./examples
COPY docker/manifests ./docker/manifests
COPY hvd_elastic_ext ./hvd_elastic_ext
COPY discover ./discover
RUN /opt/hvd/bin/pip install --no-cache-dir -c constraints.txt --no-build-isolation ".[torch,kubernetes]"

FROM ${BASE}
ARG TENSORFLOW=""
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates git openssh-client openssh-server python3 tini \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
    && useradd --uid 10001 --create-home --shell /bin/bash trainer \
    && mkdir -p /run/sshd
COPY --from=build /opt/hvd /opt/hvd
COPY docker/sshd_config_trainer /etc/ssh/
COPY docker/ssh_config_trainer /etc/ssh/ssh_config.d/trainer.conf
# Of the launcher, which passes it on: with TensorFlow, tf.keras is Keras 2.
ENV PATH=/opt/hvd/bin:$PATH TF_USE_LEGACY_KERAS=${TENSORFLOW:+1}
USER 10001
WORKDIR /home/trainer
# Keys are mounted or made where the container runs, never baked in: see docker/manifests.
ENTRYPOINT ["tini", "--"]
CMD ["hvd-elastic", "--help"]
