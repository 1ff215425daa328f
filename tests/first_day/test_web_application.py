"""A web application with one producer: it answers 503 while the broker is away, and goes on afterwards."""

import json
import urllib.error
import urllib.request
from pathlib import Path

from skylark.processes import PortReservation
from tests.support.first_day import Servers, Started, program, server, until

APPLICATION = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from skylark import Message, Producer, RocketMQError, SendFailed

producer = Producer("shop", namesrv=sys.argv[1]).start()

class Orders(BaseHTTPRequestHandler):
    def do_POST(self):
        order = self.path.rpartition("/")[2]
        try:
            receipt = producer.send(Message.json("orders", {"id": order}, keys=[order]))
            self.answer(201, receipt.message_id)
        except SendFailed as error:
            self.answer(503, f"{error.reason} ({error.__cause__.hint})")
        except RocketMQError as error:
            self.answer(503, f"{error} ({error.hint})")

    def answer(self, code, text):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *words):
        pass

with ThreadingHTTPServer(("127.0.0.1", 0), Orders) as application:
    print("ready", application.server_port)
    application.serve_forever()
"""


def post(port: str, order: int) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/orders/{order}", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own server
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def start(directory: Path, name: str, namesrv: PortReservation, broker: PortReservation) -> Started:
    namesrv.release()
    broker.release()
    ports = (
        "--namesrv-port",
        namesrv.base,
        "--broker-port",
        broker.base,
        "--set",
        "metricsPromExporterPort=0",
    )
    return server(directory / f"{name}.log", "serve", "--data", directory / "data", *ports)


def test_orders_wait_for_the_broker_and_none_is_lost(tmp_path: Path) -> None:
    namesrv, broker = PortReservation(0), PortReservation(-2, 0, 1)
    with start(tmp_path, "first", namesrv, broker) as first:
        address = Servers(first).namesrv
        with program(tmp_path / "web.log", APPLICATION, address) as application:
            port = application.until(r"ready (\d+)")[1]
            assert post(port, 1)[0] == 201
            assert first.stop() == 0
            code, text = post(port, 2)
            assert (code, "is it running?" in text) == (503, True), text
            assert "cannot connect to broker" in text
            with start(tmp_path, "second", namesrv, broker) as second:
                servers = Servers(second)
                until(lambda: post(port, 3)[0] == 201, lambda: application.text)
                lines = servers.run("tail", "orders", "--from", "begin", "--no-follow", "--body").splitlines()
    orders = [json.loads(line)["id"] for line in lines]
    assert orders.count("1") == orders.count("3") == 1
    assert "2" not in orders
