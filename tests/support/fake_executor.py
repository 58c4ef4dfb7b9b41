"""An executor without tasks: it holds the lock of a state file and takes commands on its socket."""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
import time
from typing import Any

from redrive.engine.agent import executor_socket
from redrive.engine.domain.acts import parse_command
from redrive.engine.statefile import operator_actions
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import lock

from support.processes import socket_address
from support.state_file import StateFileBuilder


class FakeExecutor(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Holds the lock of a state file and takes commands on its socket, as ``engine/executor/server.py`` does."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, state_file: StateFileBuilder) -> None:
        self.state_file = state_file
        self.executor_id = f"executor-{time.time_ns()}"
        self._state = str(state_file.path)
        self._lock = lock.acquire(self._state, self.executor_id)
        self._connections: list[socket.socket] = []
        self._dead = False
        state_file.write(self._sign_in)
        super().__init__(executor_socket.socket_path(self._state), _Conversation)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def server_bind(self) -> None:
        with socket_address(str(self.server_address)) as address:
            self.socket.bind(address)

    def _sign_in(self, transaction: Transaction) -> None:
        transaction.connection.execute(
            "INSERT INTO executor (executor_id, pid, host, version, started_at, heartbeat_at) VALUES (?,?,?,?,?,?)",
            (self.executor_id, os.getpid(), "here", "0", transaction.at, transaction.at),
        )

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        super().process_request(request, client_address)

    def die(self) -> None:
        """As by SIGKILL: the socket stays behind. Once only: its lock may be another's descriptor by then."""
        if self._dead:
            return
        self._dead = True
        self.shutdown()
        self.server_close()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        os.close(self._lock.fileno())


class _Conversation(socketserver.StreamRequestHandler):
    server: FakeExecutor

    def handle(self) -> None:
        for line in self.rfile:
            command = json.loads(line)
            self.wfile.write(json.dumps(self._answer(command)).encode() + b"\n")

    def _answer(self, command: dict[str, Any]) -> Any:
        if command["act"] == "ping":
            return {"ok": True, "message": "pong"}
        sent = parse_command(command)
        answer = self.server.state_file.write(
            lambda transaction: operator_actions.apply(transaction, sent), actor=sent.actor, command_id=sent.id
        )
        return answer.as_json()
