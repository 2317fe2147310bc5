# The image of `mqdb` as docker-compose.yml runs it: docker build --tag mqdb .
FROM python:3.11-slim

WORKDIR /opt/mqdb
COPY . .
RUN pip install --no-cache-dir --constraint requirements.lock . && useradd --create-home mqdb

USER mqdb
ENTRYPOINT ["mqdb"]
CMD ["serve"]
