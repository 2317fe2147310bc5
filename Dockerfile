# The image of `mqdb` as docker-compose.yml runs it: docker build --tag mqdb .
FROM python:3.11-slim

WORKDIR /opt/mqdb
COPY . .
# First what is locked, by its hashes; the project has none, and is built by the locked backend.
RUN pip install --no-cache-dir --require-hashes --requirement requirements.lock \
    && pip install --no-cache-dir --no-deps --no-build-isolation . \
    && useradd --create-home mqdb

USER mqdb
ENTRYPOINT ["mqdb"]
CMD ["serve"]
