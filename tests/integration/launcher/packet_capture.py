"""Writes all packets of all interfaces of this host to a file, after the line ``listening`` on its output."""

import socket
import sys

EVERYTHING = 3
RECEIVE_BUFFER_FORCE = 33

tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERYTHING))
tap.setsockopt(socket.SOL_SOCKET, RECEIVE_BUFFER_FORCE, 32 << 20)
with open(sys.argv[1], "wb", buffering=0) as file:
    print("listening", flush=True)
    while True:
        file.write(tap.recv(1 << 17))
