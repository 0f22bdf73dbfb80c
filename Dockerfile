# The service with its packs, charts, Dask's client, S3 and OpenTelemetry: no torch, no Horovod.
#
#   docker build -t pace . && docker run --read-only --tmpfs /tmp -p 8080:8080 -v pace-data:/data pace
#
# It writes to /tmp and /data only. compose.yaml adds PostgreSQL; deploy/kubernetes.yaml is for clusters.
# Settings are environment variables named PACE_..., as for `pace serve`.

FROM python:3.13-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
# pace/ holds links to the three folders beside it; COPY keeps links inside a folder, so all four go.
COPY pace/ pace/
COPY solver/ solver/
COPY api/ api/
COPY runtime/ runtime/
COPY packs/fabric/ packs/fabric/
COPY packs/servers/ packs/servers/
COPY packs/sync/ packs/sync/
# pip works from outside the environment, so that the image's second stage goes without it.
RUN python -m venv --without-pip /opt/pace \
    && pip --python /opt/pace install --constraint constraints.txt '.[api,dask,oidc,otel,plot,s3]' ./packs/fabric ./packs/servers ./packs/sync

FROM python:3.13-slim
# Numbers and not names in USER, so that an orchestrator can verify that it is not root.
RUN groupadd --gid 10001 pace \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin pace \
    && install --directory --owner=pace --group=pace /data
COPY --from=build /opt/pace /opt/pace
ENV PATH=/opt/pace/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/tmp/numba \
    MPLCONFIGDIR=/tmp/matplotlib \
    PACE_PORT=8080 \
    PACE_DATABASE_URL=sqlite:////data/pace.db
# Compiled here, for any processor of this kind: a container that compiles at its start has its first answer half a
# minute later. Numba reads a cache only where it may write, so each container starts with a copy.
ENV NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES=
RUN NUMBA_CACHE_DIR=/opt/pace/compiled python -c "from pace.api.workers.kernels import load_kernels; load_kernels()"
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python", "-c", "import os, urllib.request as request; request.urlopen(f\"http://127.0.0.1:{os.environ['PACE_PORT']}/healthz\", timeout=4)"]
ENTRYPOINT ["sh", "-c", "[ -e \"$NUMBA_CACHE_DIR\" ] || cp -a /opt/pace/compiled \"$NUMBA_CACHE_DIR\"; exec pace \"$@\"", "pace"]
CMD ["serve", "--host", "0.0.0.0"]
