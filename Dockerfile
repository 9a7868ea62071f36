# MXNet for CPUs; /results of the container gets the page and the records, /data may have CIFAR-10:
#     docker build -t poc .
#     docker run --rm -v "$PWD/results:/results" -v ~/cifar:/data -e POC_DATA=/data poc run --quick --results /results
# Checkpoints and downloads outlive the container with -v ~/.cache/poc-mxnet:/cache.
# For GPUs, where the host has a driver and the NVIDIA Container Toolkit. CUDA's libraries are in the packages, so that the
# base may have them or not (BASE=nvidia/cuda:11.8.0-base-ubuntu22.04):
#     docker build -t poc-cuda --build-arg REQUIREMENTS=requirements.txt .
#     docker run --rm --gpus all --shm-size 2g -v "$PWD/results:/results" poc-cuda run --results /results
# MXNet has no code for H100 and later: PyTorch has, with
#     --build-arg REQUIREMENTS="requirements/common.txt requirements/torch.txt requirements/torch-cu13.txt"
# Both run as another user, too: docker run --user "$(id -u):$(id -g)" ...
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG REQUIREMENTS="requirements/common.txt requirements/mxnet.txt"

# git says in each record which commit made it.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates git libgomp1 libquadmath0 python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

RUN mkdir -m 1777 /cache
ENV POC_CACHE=/cache PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
# Google's Kubernetes has the driver's libraries there, and leaves it to the image to name the folder.
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
WORKDIR /poc

COPY requirements.txt .
COPY requirements requirements
# The lists are complete; --no-deps is for those of PyTorch, which leave out what is not used.
RUN python3 -m venv /opt/venv \
    && for list in $REQUIREMENTS; do set -- "$@" -r "$list"; done \
    && pip install --no-cache-dir --no-deps --require-hashes "$@"

COPY . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation -e . \
    && poc doctor

# As Ctrl-C, so that the run is recorded as interrupted: docker stop --time 60 CONTAINER
STOPSIGNAL SIGINT
ENTRYPOINT ["poc"]
CMD ["doctor"]
