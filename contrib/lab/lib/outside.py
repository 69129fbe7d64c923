"""The world outside the lab: a web server on port 8000 and a DNS server on port 53.

The web server answers every path with the caller's address, so that a test can see masquerading, except for two:
  /token                a token as registries such as Docker Hub want one: without a name and password it allows nothing;
                        the only name is `me`, and its password `right`
  /token.crt            the certificate of the key that signs tokens
The DNS server has these names, and answers NXDOMAIN with an SOA record for all others:
  outside.test          A, TTL 30
  alias.outside.test    CNAME to outside.test
  big.outside.test      TXT of some 2,500 octets: truncated over UDP, whole over TCP
  slow.outside.test     A, after 3 seconds
  registry.lab, nN      A, as in /etc/hosts of the machines
Each question is a line of the log: name, type, transport, the caller's address.
"""

import base64
import functools
import http.server
import json
import os
import socketserver
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

ADDRESS = sys.argv[1]
NETWORK = ADDRESS.rsplit(".", 1)[0]
A, NS, CNAME, SOA, TXT, OPT = 1, 2, 5, 6, 16, 41
NAMES = {
    "outside.test": [(A, 30, ADDRESS)],
    "slow.outside.test": [(A, 30, ADDRESS)],
    "alias.outside.test": [(CNAME, 30, "outside.test")],
    "big.outside.test": [(TXT, 30, "%02d-" % i + "x" * 240) for i in range(10)],
    "registry.lab": [(A, 30, ADDRESS)],
}
for number in range(1, 21):
    NAMES["n%d" % number] = [(A, 30, "%s.%d" % (NETWORK, 10 + number))]
ZONE = "test"


def encode_name(name):
    labels = [label.encode("ascii") for label in name.split(".") if label]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def encode_data(kind, value):
    if kind == A:
        return bytes(int(part) for part in value.split("."))
    if kind == CNAME:
        return encode_name(value)
    if kind == TXT:
        return bytes([len(value)]) + value.encode("ascii")
    return encode_name("ns." + ZONE) + encode_name("admin." + ZONE) + struct.pack("!5I", 1, 60, 60, 600, 15)


def record(name, kind, ttl, value):
    data = encode_data(kind, value)
    return encode_name(name) + struct.pack("!HHIH", kind, 1, ttl, len(data)) + data


def read_name(message, at):
    labels = []
    while message[at]:
        if message[at] > 63:
            raise ValueError("a compressed question")
        labels.append(message[at + 1 : at + 1 + message[at]].decode("ascii", "replace").lower())
        at += 1 + message[at]
    return ".".join(labels), at + 1


def udp_limit(message, at):
    """The largest answer that the caller accepts, from its OPT record if that is the first additional record,
    and whether there is one."""
    if struct.unpack("!H", message[10:12])[0] and message[at : at + 3] == b"\0" + struct.pack("!H", OPT):
        return max(512, struct.unpack("!H", message[at + 3 : at + 5])[0]), True
    return 512, False


def answer(message, transport, client):
    identity, flags, questions = struct.unpack("!3H", message[:6])
    if flags & 0x8000 or questions != 1:
        return None
    name, at = read_name(message, 12)
    kind = struct.unpack("!H", message[at : at + 2])[0]
    question = message[12 : at + 4]
    limit, extended = udp_limit(message, at + 4)
    print(name, kind, transport, client, flush=True)
    if name == "slow.outside.test":
        time.sleep(3)
    known = NAMES.get(name)
    records = [(name,) + entry for entry in known or [] if entry[0] in (kind, CNAME)]
    for entry in list(records):
        if entry[1] == CNAME and kind != CNAME:
            records += [(entry[3],) + other for other in NAMES.get(entry[3], []) if other[0] == kind]
    authority = [] if records else [(ZONE, SOA, 15, "")]
    code = 0 if known else 3
    extra = b"\0" + struct.pack("!HHIH", OPT, 1232, 0, 0) if extended else b""

    def reply(bits, answers, authorities):
        head = struct.pack(
            "!6H", identity, 0x8080 | (flags & 0x0100) | bits | code, 1, len(answers), len(authorities), 1 if extra else 0
        )
        return head + question + b"".join(record(*entry) for entry in answers + authorities) + extra

    whole = reply(0, records, authority)
    if transport == "udp" and len(whole) > limit:
        return reply(0x0200, [], [])
    return whole


class Udp(socketserver.BaseRequestHandler):
    def handle(self):
        message, sock = self.request
        reply = answer(message, "udp", self.client_address[0])
        if reply:
            sock.sendto(reply, self.client_address)


class Tcp(socketserver.StreamRequestHandler):
    timeout = 10

    def handle(self):
        while True:
            size = self.rfile.read(2)
            if len(size) < 2:
                return
            message = self.rfile.read(struct.unpack("!H", size)[0])
            reply = answer(message, "tcp", self.client_address[0])
            if not reply:
                return
            self.wfile.write(struct.pack("!H", len(reply)) + reply)


@functools.lru_cache(maxsize=None)
def token_key():
    """The key of the token service and its certificate in PEM, made for the first request."""
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = os.path.join(folder, "key"), os.path.join(folder, "certificate")
        command = "openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=lab-tokens".split()
        subprocess.run(command + ["-keyout", key, "-out", certificate], check=True, capture_output=True)
        with open(key, "rb") as private, open(certificate, "rb") as public:
            return private.read(), public.read()


def token(service, scopes):
    """A JWT (RFC 7519) that allows what the scopes say, such as `repository:test/web:pull`."""
    key, certificate = token_key()
    now = int(time.time())
    access = [dict(zip(("type", "name", "actions"), scope.split(":"))) for scope in scopes]
    for entry in access:
        entry["actions"] = entry["actions"].split(",")
    chain = "".join(certificate.decode().strip().splitlines()[1:-1])
    head = {"typ": "JWT", "alg": "RS256", "x5c": [chain]}
    claims = {"iss": "lab", "aud": service, "nbf": now - 10, "exp": now + 300, "access": access}

    def encode(data):
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    signed = b".".join(encode(json.dumps(part).encode()) for part in (head, claims))
    with tempfile.NamedTemporaryFile() as file:
        file.write(key)
        file.flush()
        command = ["openssl", "dgst", "-sha256", "-sign", file.name]
        signature = subprocess.run(command, input=signed, check=True, capture_output=True).stdout
    return (signed + b"." + encode(signature)).decode()


class Web(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        if url.path == "/token.crt":
            return self.answer(200, token_key()[1])
        if url.path == "/token":
            return self.answer_token(urllib.parse.parse_qs(url.query))
        return self.answer(200, ("outside sees %s\n" % self.client_address[0]).encode())

    def answer_token(self, asked):
        credentials = self.headers["Authorization"]
        if credentials not in (None, "Basic " + base64.b64encode(b"me:right").decode()):
            return self.answer(401, b'{"details":"incorrect username or password"}')
        scopes = " ".join(asked.get("scope", [])).split() if credentials else []
        found = {"token": token(asked["service"][0], scopes), "expires_in": 300}
        return self.answer(200, json.dumps(found).encode())

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments):
        pass


class ThreadingTCPServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


class ThreadingUDPServer(socketserver.ThreadingUDPServer):
    daemon_threads = True


servers = [
    ThreadingUDPServer((ADDRESS, 53), Udp),
    ThreadingTCPServer((ADDRESS, 53), Tcp),
    http.server.ThreadingHTTPServer((ADDRESS, 8000), Web),
]
for server in servers[1:]:
    threading.Thread(target=server.serve_forever, daemon=True).start()
servers[0].serve_forever()
