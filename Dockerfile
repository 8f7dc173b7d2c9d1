# One image for every part. The chart, or the command line, names what runs.
# python:3.12-slim of September 2026 (3.12.14, Debian trixie), by its digest: a tag changes, what a digest names does not.
ARG PYTHON_IMAGE=docker.io/library/python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea
FROM ${PYTHON_IMAGE} AS build
ENV UV_PROJECT_ENVIRONMENT=/app UV_LINK_MODE=copy UV_PYTHON_PREFERENCE=only-system UV_CACHE_DIR=/uv-cache
# Bytecode is made here, as nothing is written where the image runs. By hash, because a build that sets all file
# times alike would make bytecode by time stale, and every start would compile everything again.
ENV UV_COMPILE_BYTECODE=1 PYC_INVALIDATION_MODE=UNCHECKED_HASH
# What production runs: without the emulator, devfleet, and the servers that they bring.
ENV PACKAGES="--package fleetbus --package fleetbus-watcher --package fleetbus-reconciler --package fleetbus-distributor --package fleetbus-query-api --package fleetbus-archiver --package fleetbus-agent"
WORKDIR /src
RUN --mount=type=bind,source=.ci/uv.txt,target=/uv.txt \
    pip install --quiet --no-cache-dir --no-deps --require-hashes --requirement /uv.txt
# Third-party wheels first: they change less often than our code.
# With --frozen the root manifest and the lock are enough; --locked would need every member's.
RUN --mount=type=cache,target=/uv-cache \
    --mount=type=bind,source=uv.lock,target=uv.lock \
    --mount=type=bind,source=pyproject.toml,target=pyproject.toml \
    uv sync --frozen --no-dev $PACKAGES --no-install-workspace
COPY pyproject.toml uv.lock ./
COPY proto proto
COPY sdk sdk
COPY cli cli
COPY services services
# What `fleetbus --version` and the metric fleetbus_build_info name, as there is no .git here.
ARG FLEETBUS_COMMIT=""
RUN --mount=type=cache,target=/uv-cache \
    uv sync --frozen --no-dev $PACKAGES --no-editable
# What uv leaves for its next run: a lock that all may write, and when our sources were copied, by which no two builds
# would be the same.
RUN find /app -name .lock -delete -o -name uv_cache.json -delete; \
    sed -i '\,/uv_cache.json\,,d' /app/lib/python*/site-packages/fleetbus*.dist-info/RECORD

FROM ${PYTHON_IMAGE}
COPY --from=build /app /app
# The user has a number and no name, which is all that Kubernetes asks for; nothing of the image belongs to it.
ENV PATH=/app/bin:$PATH HOME=/nonexistent PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
# No default command: whoever starts the image names one.
