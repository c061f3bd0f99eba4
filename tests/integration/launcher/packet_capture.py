"""Write whatever goes through any interface of this host to the file named, from the line ``listening`` on."""

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
