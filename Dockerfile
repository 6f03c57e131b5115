# The API and dashboard by default; any other command by name: `docker run faultline worker shop.jobs:app`.
# For your own tasks: a Dockerfile of yours that begins `FROM` this image and adds your package.

FROM python:3.13-slim AS build
WORKDIR /build
RUN python -m venv /opt/faultline
# All that the lock names is fetched and checked against its hashes; what is installed then comes from there and nowhere else.
COPY requirements.lock ./
RUN /opt/faultline/bin/pip download --no-cache-dir --no-deps --require-hashes --requirement requirements.lock --dest /wheels
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src ./src
RUN /opt/faultline/bin/pip install --no-cache-dir --no-index --find-links /wheels '.[cli,server,metrics]'

FROM python:3.13-slim
# Numbers, not names: a cluster that forbids root can see that this is not root.
RUN groupadd --system --gid 10001 faultline && useradd --system --uid 10001 --gid 10001 --no-create-home faultline
COPY --from=build /opt/faultline /opt/faultline
COPY examples /app/examples
ENV PATH=/opt/faultline/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
USER 10001:10001
EXPOSE 8000
# For the API. A worker's is `faultline workers --here`, see compose.yaml.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
# Workers finish what runs on SIGTERM; give them the time: `stop_grace_period` in compose.yaml.
STOPSIGNAL SIGTERM
ENTRYPOINT ["faultline"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000", "--keys-later"]
