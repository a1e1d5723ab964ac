"""The lantern service; see README.md."""

import configparser
import json
import os
import socket

HOME = os.path.dirname(os.path.abspath(__file__))


def settings():
    parser = configparser.ConfigParser()
    parser.read(os.path.join(HOME, "lantern.ini"))
    return parser["lantern"]


class Store:
    def __init__(self, folder, limit):
        self.path = os.path.join(HOME, folder, "store.json")
        self.limit = limit
        self.values = {}
        if os.path.exists(self.path):
            with open(self.path) as file:
                self.values = json.load(file)

    def save(self):
        with open(self.path, "w") as file:
            json.dump(self.values, file)

    def answer(self, line):
        words = line.split()
        if words[0] == "PING":
            return "PONG"
        if words[0] == "SET":
            if len(self.values) >= self.limit:
                return "FULL"
            self.values[words[1]] = words[2]
            return "OK"
        if words[0] == "GET":
            return "VALUE " + self.values[words[1]]
        if words[0] == "COUNT":
            return str(len(self.values))
        return "WHAT"


def main():
    config = settings()
    store = Store(config["data"], int(config["limit"]))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", int(config["port"])))
    listener.listen()
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rw") as lines:
            for line in lines:
                lines.write(store.answer(line) + "\n")
                lines.flush()


if __name__ == "__main__":
    main()
