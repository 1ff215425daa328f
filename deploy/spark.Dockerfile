# docker build -f deploy/spark.Dockerfile -t skylark-spark .
# One image for the driver (skylark spark submit …) and the executors, so that both have the same Python and packages.
# docker run skylark-spark skylark spark submit --help
ARG SPARK=4.3.0
FROM apache/spark:${SPARK} AS spark

FROM python:3.12-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE NOTICE CHANGELOG.md ./
COPY src ./src
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[compression,spark]"

FROM python:3.12-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless tini \
    && rm -rf /var/lib/apt/lists/*
COPY --from=spark /opt/spark /opt/spark
COPY --from=spark /opt/entrypoint.sh /opt/entrypoint.sh
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels "skylarkmq[compression,spark]" \
    && rm -rf /wheels \
    && useradd --uid 10001 --create-home skylark
ENV SPARK_HOME=/opt/spark PYSPARK_PYTHON=/usr/local/bin/python
USER 10001
WORKDIR /home/skylark
# Runs `executor` with what Spark passes, and every other command as it is.
ENTRYPOINT ["/opt/entrypoint.sh"]
CMD ["skylark", "spark", "--help"]
