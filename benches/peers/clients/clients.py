"""Clients of Python beside s3engine: one of them, once, into one buffer, and one line of JSON about it."""

import argparse
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

ARGUMENTS = argparse.ArgumentParser()
for name in ("client", "server"):
    ARGUMENTS.add_argument(f"--{name}", required=True)
for name in ("size", "part", "in-flight", "threads"):
    ARGUMENTS.add_argument(f"--{name}", type=int, required=True)
ARGUMENTS.add_argument("--seconds", type=float, required=True)
WORK = ARGUMENTS.parse_args()

URL, BUCKET, KEY = f"http://{WORK.server}", "bucket", f"sz-{WORK.size}"
EACH = min(WORK.part, WORK.size) or WORK.size
PLACES = max(WORK.size // WORK.part, WORK.in_flight) if WORK.part else 2 * WORK.in_flight
os.environ.update(
    AWS_ACCESS_KEY_ID="id",
    AWS_SECRET_ACCESS_KEY="secret",
    AWS_REGION="us-east-1",
    AWS_ENDPOINT_URL=URL,
    AWS_EC2_METADATA_DISABLED="true",
    AWS_ALLOW_HTTP="true",
)
MEMORY = memoryview(bytearray(EACH * PLACES))
for page in range(0, len(MEMORY), 4096):
    MEMORY[page] = 1


def place(nth):
    """Where a request writes to, and from where in the object."""
    at = nth % PLACES
    return MEMORY[at * EACH : (at + 1) * EACH], at * WORK.part % WORK.size


def whole(bytes_read):
    if bytes_read != EACH:
        raise EOFError(f"{bytes_read} bytes came, {EACH} were asked for")


def boto3():
    import boto3
    from botocore.config import Config

    config = Config(max_pool_connections=WORK.in_flight, s3={"addressing_style": "path"})
    client = boto3.client("s3", endpoint_url=URL, config=config)

    def get(nth):
        memory, start = place(nth)
        wanted = {"Range": f"bytes={start}-{start + EACH - 1}"} if WORK.part else {}
        body = client.get_object(Bucket=BUCKET, Key=KEY, **wanted)["Body"]
        at = 0
        while at < EACH and (read := body.readinto(memory[at:])):
            at += read
        whole(at)

    return get


def obstore():
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        BUCKET, endpoint=URL, region="us-east-1", virtual_hosted_style_request=False, client_options={"allow_http": True}
    )

    def get(nth):
        memory, start = place(nth)
        got = obstore.get_range(store, KEY, start=start, length=EACH) if WORK.part else obstore.get(store, KEY).bytes()
        got = memoryview(got)
        whole(len(got))
        memory[:] = got

    return get


def awscrt():
    from awscrt.auth import AwsCredentialsProvider
    from awscrt.http import HttpHeaders, HttpRequest
    from awscrt.io import ClientBootstrap, DefaultHostResolver, EventLoopGroup
    from awscrt.s3 import S3Client, S3RequestTlsMode, S3RequestType, create_default_s3_signing_config

    loops = EventLoopGroup()
    keys = AwsCredentialsProvider.new_static("id", "secret")
    client = S3Client(
        bootstrap=ClientBootstrap(loops, DefaultHostResolver(loops)),
        region="us-east-1",
        tls_mode=S3RequestTlsMode.DISABLED,
        signing_config=create_default_s3_signing_config(region="us-east-1", credential_provider=keys),
        part_size=max(EACH, 5 << 20),
        throughput_target_gbps=100,
    )

    def get(nth):
        memory, start = place(nth)
        headers = [("host", WORK.server)]
        if WORK.part:
            headers.append(("range", f"bytes={start}-{start + EACH - 1}"))
        came = 0

        def body(chunk, offset, **_):
            nonlocal came
            # Offsets are those of the object.
            at = offset - start if WORK.part else offset
            memory[at : at + len(chunk)] = chunk
            came += len(chunk)

        request = HttpRequest("GET", f"/{BUCKET}/{KEY}", HttpHeaders(headers))
        client.make_request(request=request, type=S3RequestType.GET_OBJECT, on_body=body).finished_future.result(60)
        whole(came)

    return get


def s3torchconnectorclient():
    from s3torchconnectorclient._mountpoint_s3_client import MountpointS3Client

    client = MountpointS3Client(
        region="us-east-1",
        user_agent_prefix="peers",
        throughput_target_gbps=100.0,
        part_size=max(WORK.part, 8 << 20),
        profile=None,
        unsigned=False,
        endpoint=URL,
        force_path_style=True,
    )

    def get(nth):
        memory, start = place(nth)
        pieces = client.get_object(BUCKET, KEY, start=start, end=start + EACH) if WORK.part else client.get_object(BUCKET, KEY)
        at = 0
        for piece in pieces:
            memory[at : at + len(piece)] = piece
            at += len(piece)
        whole(at)

    return get


def s3dlio():
    import s3dlio

    uri = f"s3://{BUCKET}/{KEY}"

    def get(nth):
        memory, start = place(nth)
        got = memoryview(s3dlio.get_range(uri, start, EACH) if WORK.part else s3dlio.get(uri))
        whole(len(got))
        memory[:] = got

    return get


class Turns:
    """Numbers of requests, until the time is over."""

    def __init__(self):
        self.lock, self.number, self.done, self.over = threading.Lock(), 0, 0, False

    def work(self, get):
        while not self.over:
            with self.lock:
                nth, self.number = self.number, self.number + 1
            get(nth)
            with self.lock:
                self.done += 1


def main():
    get = {f.__name__: f for f in (boto3, obstore, awscrt, s3torchconnectorclient, s3dlio)}[WORK.client]()
    turns = Turns()
    with ThreadPoolExecutor(WORK.in_flight) as threads:
        working = [threads.submit(turns.work, get) for _ in range(WORK.in_flight)]
        time.sleep(WORK.seconds / 4)
        began, cpu, done = time.monotonic(), time.process_time(), turns.done
        time.sleep(WORK.seconds)
        seconds, used, requests = time.monotonic() - began, time.process_time() - cpu, turns.done - done
        turns.over = True
        for one in working:
            one.result()
    print(json.dumps({"requests": requests, "seconds": seconds, "cpu_seconds": used}), flush=True)
    # Threads of native clients need not end.
    os._exit(0)


main()
