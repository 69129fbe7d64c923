"""Calls the API without credentials as fast as it answers: flood-calls.py HOST PORT SECONDS.

Prints the number of answered calls.
"""

import socket
import ssl
import sys
import threading
import time

host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
end = time.monotonic() + seconds
context = ssl.create_default_context()
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
requests = b"GET /nothing HTTP/1.1\r\nHost: kat\r\n\r\n" * 200
lock = threading.Lock()
answered = 0


def call():
    global answered
    while time.monotonic() < end:
        try:
            raw = socket.create_connection((host, port), timeout=4)
            with context.wrap_socket(raw) as tls:
                while time.monotonic() < end:
                    tls.sendall(requests)
                    found, rest = 0, b""
                    while found < 200:
                        piece = tls.recv(65536)
                        if not piece:
                            raise OSError("closed")
                        rest += piece
                        found += rest.count(b"HTTP/1.1 ")
                        rest = rest[-8:]
                    with lock:
                        answered += found
        except OSError:
            time.sleep(0.1)


threads = [threading.Thread(target=call) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(answered)
