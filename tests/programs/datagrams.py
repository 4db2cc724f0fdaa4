"""UDP: `datagrams.py receive ADDRESS PORT` prints what comes, until `end`; `send ADDRESS PORT TEXT...` sends."""

import socket
import sys


def main(action: str, address: str, port: str, *texts: str) -> None:
    """Receive or send."""
    place = (address, int(port))
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        for text in texts:
            datagrams.sendto(text.encode(), place)
        if action == "receive":
            datagrams.bind(place)
            text = "ready"
            while text != "end":
                print(text, flush=True)
                text = datagrams.recv(1 << 16).decode()


main(*sys.argv[1:])
