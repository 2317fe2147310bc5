# The image of `mqdb` as docker-compose.yml runs it:
#   docker build --build-arg VERSION=$(python3 do.py run --version | sed -n 's/^mqdb //p') --tag mqdb .

FROM python:3.11-slim AS build
WORKDIR /opt/mqdb
# The locked packages in a layer of their own, which a change of the sources does not touch.
COPY requirements.lock ./
RUN python -m venv /opt/environment \
    && /opt/environment/bin/pip install --no-cache-dir --require-hashes --requirement requirements.lock
# The project has no hash. The locked backend builds it.
COPY . .
RUN /opt/environment/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.11-slim
ARG VERSION=unknown
LABEL org.opencontainers.image.title="mqdb" \
      org.opencontainers.image.description="A message broker in PostgreSQL that behaves like Apache RocketMQ" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
# Its number is that of runAsUser in deploy/kubernetes.
RUN useradd --uid 1000 --create-home mqdb
COPY --from=build /opt/environment /opt/environment
# The address for metrics and health is inside of the container, unless you set another one.
ENV PATH=/opt/environment/bin:$PATH \
    MQDB_HTTP=127.0.0.1:8090

USER 1000
# It asks `mqdb serve` or `mqdb web`. Run other commands with --no-healthcheck.
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://' + os.environ['MQDB_HTTP'] + '/healthz', timeout=5)"]
ENTRYPOINT ["mqdb"]
CMD ["serve"]
