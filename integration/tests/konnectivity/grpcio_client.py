"""A client of proxy-server by grpcio, which shares no code with any of the programs: SOCKET ADDRESS COUNT OPEN.

COUNT connections one after the other on one channel, each with a mebibyte there and back; OPEN connections that are all open before
the first of them is used; then one that is refused."""

import hashlib
import queue
import sys

import grpc


def varint(number):
    octets = b""
    while number > 127:
        octets += bytes([number & 127 | 128])
        number >>= 7
    return octets + bytes([number])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(octets):
    found, at = {}, 0

    def number():
        nonlocal at
        value, shift = 0, 0
        while True:
            octet = octets[at]
            at += 1
            value |= (octet & 127) << shift
            shift += 7
            if octet < 128:
                return value

    while at < len(octets):
        key = number()
        if key & 7 == 2:
            length = number()
            found[key >> 3] = octets[at : at + length]
            at += length
        else:
            found[key >> 3] = number()
    return found


def dial(address):
    return field(2, field(1, b"tcp") + field(2, address.encode()) + field(3, 42))


def data(connection, octets):
    return field(1, 4) + field(4, field(1, connection) + field(3, octets))


def close(connection):
    return field(1, 2) + field(5, field(1, connection))


class Tunnel:
    def __init__(self, channel, address):
        call = channel.stream_stream("/ProxyService/Proxy", request_serializer=None, response_deserializer=None)
        self.packets = queue.Queue()
        self.answers = call(iter(self.packets.get, None))
        self.packets.put(dial(address))
        answer = fields(fields(next(self.answers))[3])
        assert answer[3] == 42, answer
        self.error = answer.get(1, b"").decode()
        self.connection = answer.get(2)

    def echo(self, octets):
        pieces = range(0, len(octets), 16384)
        for at in pieces:
            self.packets.put(data(self.connection, octets[at : at + 16384]))
        read = b""
        while len(read) < len(octets):
            read += fields(fields(next(self.answers))[4])[3]
        return read

    def close(self):
        self.packets.put(close(self.connection))
        answer = fields(next(self.answers))
        assert answer[1] == 3, answer
        self.packets.put(None)


def main():
    socket, address, count, at_once = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    sent = b"".join(hashlib.sha256(bytes([n >> 8, n & 255])).digest() for n in range(32768))
    with grpc.insecure_channel("unix:" + socket) as channel:
        for _ in range(count):
            tunnel = Tunnel(channel, address)
            assert not tunnel.error, tunnel.error
            assert tunnel.echo(sent) == sent
            tunnel.close()
        print("echoed", count)
        tunnels = [Tunnel(channel, address) for _ in range(at_once)]
        assert len({tunnel.connection for tunnel in tunnels}) == at_once
        for number, tunnel in enumerate(tunnels):
            assert not tunnel.error, tunnel.error
            assert tunnel.echo(sent[number * 32 :][:1024]) == sent[number * 32 :][:1024]
        print("open at once", at_once)
        for tunnel in tunnels:
            tunnel.close()
        print(Tunnel(channel, "127.0.0.1:1").error)


main()
