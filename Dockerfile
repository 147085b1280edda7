# SPDX-License-Identifier: Apache-2.0
# prime_ext with verl 0.9.1, vLLM 0.24.0 and torch 2.11 (CUDA 13) for GPU nodes; docs/how_to/install.md.
#
#   docker build -t prime_ext --build-arg FLASH_ATTN_WHEEL=URL .
#   docker run --gpus all --shm-size=10g -it prime_ext python -m prime_ext.doctor
#
# NOT BUILT BY US: its versions are those of recipes/gpu_environment.txt, and nothing more has been checked.
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04

# URL of a wheel of flash-attn 2.8.3 for torch 2.11, CUDA 13 and Python 3.12. Empty: it is compiled, which takes an hour or
# so and, with each of MAX_JOBS, some GB of memory. none: it is left out (attn_implementation=sdpa).
ARG FLASH_ATTN_WHEEL=
ARG MAX_JOBS=8

# libseccomp confines generated code that is judged.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        build-essential git libnuma1 libseccomp2 ninja-build python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv PIP_NO_CACHE_DIR=1

WORKDIR /opt/prime_ext
COPY pyproject.toml setup.py README.md LICENSE ./
COPY recipes/gpu_environment.txt recipes/
COPY prime_ext prime_ext
COPY eval eval
COPY data_preprocessing data_preprocessing
RUN pip install -c recipes/gpu_environment.txt -e ".[gpu]"
RUN case "$FLASH_ATTN_WHEEL" in \
        none) ;; \
        "") pip install ninja packaging setuptools wheel \
            && MAX_JOBS=$MAX_JOBS pip install --no-build-isolation flash-attn==2.8.3 ;; \
        *) pip install "$FLASH_ATTN_WHEEL" ;; \
    esac
COPY . .
