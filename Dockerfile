# sparkweb as an image: web, worker, beat and every command. Built without a network from deploy/wheelhouse
# (`make wheelhouse`), on any base that has Python 3.11 with venv: the default, or one of your own by BASE_IMAGE.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS packages
COPY deploy/wheelhouse /wheelhouse
COPY requirements.lock /wheelhouse/wanted.lock
# By hash, from the wheelhouse only; a wheelhouse of another lock file is refused by name.
RUN cmp /wheelhouse/requirements.lock /wheelhouse/wanted.lock \
    || { echo "deploy/wheelhouse is of another requirements.lock: run 'make wheelhouse'" >&2; exit 1; } \
    && python3 -m venv /opt/sparkweb \
    && /opt/sparkweb/bin/python -m pip install --disable-pip-version-check --no-input --progress-bar off --no-index \
       --find-links /wheelhouse --require-hashes --no-deps -r /wheelhouse/wanted.lock \
    && rm -rf /opt/sparkweb/bin/pip* /opt/sparkweb/lib/python3*/site-packages/pip /opt/sparkweb/lib/python3*/site-packages/setuptools

FROM ${BASE_IMAGE}
# PostgreSQL's own tools are used by `backup` when the base has them (psql, pg_dump); else backups are portable ones.
RUN groupadd --gid 10001 sparkweb \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin sparkweb \
    && install -d -m 0700 -o 10001 -g 10001 /var/lib/sparkweb
COPY --from=packages /opt/sparkweb /opt/sparkweb
COPY manage.py pyproject.toml LICENSE /app/
COPY apps /app/apps
COPY sparkweb /app/sparkweb
COPY static /app/static
COPY templates /app/templates
WORKDIR /app
RUN /opt/sparkweb/bin/python -m compileall -q apps sparkweb
ENV VAR=/var/lib/sparkweb \
    PATH=/opt/sparkweb/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
VOLUME /var/lib/sparkweb
ENTRYPOINT ["/opt/sparkweb/bin/python", "manage.py"]
CMD ["serve", "web"]
