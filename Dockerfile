# The command line in a container: docker build -t mercer . && docker run --rm -v "$PWD:/data" mercer fit table.csv --target y -o model
FROM python:3.11-slim
# the CPU build of torch; for a GPU build with --build-arg INDEX=
ARG INDEX=https://download.pytorch.org/whl/cpu
COPY . /source
RUN pip install --no-cache-dir ${INDEX:+--extra-index-url "$INDEX"} -c /source/constraints.txt '/source[data]' && rm -rf /source
WORKDIR /data
ENTRYPOINT ["mercer"]
