# The command line in a container: docker build -t mercer . && docker run --rm -v "$PWD:/data" mercer fit table.csv --target y -o model
FROM python:3.11-slim
COPY . /source
RUN pip install --no-cache-dir -c /source/constraints.txt '/source[data]' && rm -rf /source
WORKDIR /data
ENTRYPOINT ["mercer"]
