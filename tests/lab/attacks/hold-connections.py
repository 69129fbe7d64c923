"""Holds HTTP/2 connections of a caller without credentials: hold-connections.py HOST PORT SECONDS ADDRESS...

From each ADDRESS of this machine it opens 256 connections, requests /healthz once on each, and then
only answers pings. It opens a closed connection again after a second. At the end it prints the number
of answered requests, and the largest number of connections that it held.
"""

import selectors
import socket
import ssl
import sys
import threading
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, SETTINGS, PING = 0, 4, 6
ACK = 1


def frame(kind, flags, stream, body=b""):
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


# GET https://kat/healthz with the static table of RFC 7541; END_HEADERS and END_STREAM are set.
REQUEST = frame(1, 5, 1, b"\x82\x87\x01\x03kat\x04\x08/healthz")

host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
end = time.monotonic() + seconds
context = ssl.create_default_context()
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
lock = threading.Lock()
answered = held = most = 0


def hold(address, count):
    """Keeps COUNT connections from ADDRESS until the end; runs in a thread of its own."""
    global answered, held, most
    selector = selectors.DefaultSelector()
    missing = count
    retry = 0.0
    while time.monotonic() < end:
        while missing and time.monotonic() >= retry and time.monotonic() < end:
            try:
                raw = socket.create_connection((host, port), timeout=4, source_address=(address, 0))
                tls = context.wrap_socket(raw)
                tls.sendall(PREFACE + frame(SETTINGS, 0, 0) + REQUEST)
                tls.setblocking(False)
                selector.register(tls, selectors.EVENT_READ, bytearray())
                missing -= 1
                with lock:
                    held += 1
                    most = max(most, held)
            except OSError:
                retry = time.monotonic() + 1
        for key, _ in selector.select(0.2):
            try:
                piece = key.fileobj.recv(65536)
            except ssl.SSLWantReadError:
                continue
            except OSError:
                piece = b""
            if not piece:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                missing += 1
                retry = time.monotonic() + 1
                with lock:
                    held -= 1
                continue
            waiting = key.data
            waiting += piece
            while len(waiting) >= 9:
                length = int.from_bytes(waiting[:3], "big")
                if len(waiting) < 9 + length:
                    break
                kind, flags, body = waiting[3], waiting[4], bytes(waiting[9 : 9 + length])
                del waiting[: 9 + length]
                if kind == DATA and flags & 1:
                    with lock:
                        answered += 1
                answer = b""
                if kind == PING and not flags & ACK:
                    answer = frame(PING, ACK, 0, body)
                elif kind == SETTINGS and not flags & ACK:
                    answer = frame(SETTINGS, ACK, 0)
                try:
                    key.fileobj.sendall(answer)
                except OSError:
                    pass


threads = [threading.Thread(target=hold, args=(address, 32)) for address in sys.argv[4:] for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(answered, most)
