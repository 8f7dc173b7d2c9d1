# One image for every part. The chart, or the command line, names what runs.
FROM python:3.12-slim AS build
COPY --from=ghcr.io/astral-sh/uv:0.13.8 /uv /bin/uv
ENV UV_PROJECT_ENVIRONMENT=/app UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 UV_PYTHON_PREFERENCE=only-system UV_CACHE_DIR=/uv-cache
# What production runs: without the emulator, devfleet, and the servers that they bring.
ENV PACKAGES="--package fleetbus --package fleetbus-watcher --package fleetbus-reconciler --package fleetbus-distributor --package fleetbus-query-api"
WORKDIR /src
# Third-party wheels first: they change less often than our code.
# With --frozen the root manifest and the lock are enough; --locked would need every member's.
RUN --mount=type=cache,target=/uv-cache \
    --mount=type=bind,source=uv.lock,target=uv.lock \
    --mount=type=bind,source=pyproject.toml,target=pyproject.toml \
    uv sync --frozen --no-dev $PACKAGES --no-install-workspace
COPY pyproject.toml uv.lock ./
COPY proto proto
COPY sdk sdk
COPY services services
RUN --mount=type=cache,target=/uv-cache \
    uv sync --frozen --no-dev $PACKAGES --no-editable

FROM python:3.12-slim
RUN useradd --uid 10001 --create-home fleetbus
COPY --from=build /app /app
ENV PATH=/app/bin:$PATH
USER 10001
# No default command: whoever starts the image names one.
