"""One server, a proxy before it, and the stores of owners and of readers."""

from __future__ import annotations

import itertools
import random
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.stores.postgres.embedded import Programs
from holdfast.stores.postgres.store import PostgresStore
from tests.certificates import make_certificate
from tests.postgres import PostgresServer, open_folder, running
from tests.proof.server.clusters import Control, TcpServer, port_of, socket_of
from tests.proof.server.proxy import Proxy
from tests.proof.server.tally import Tally
from tests.proof.server.trials import Trial, Witnessed

SCHEMA = "proof"

_numbers = itertools.count(1)


@dataclass
class Scene:
    """Where trials take place."""

    server: PostgresServer
    way: str
    """The URL of the database through the proxy."""
    proxy: Proxy
    control: Control
    direct: PostgresStore
    tally: Tally
    chance: random.Random
    schema: str = SCHEMA
    _wanted: dict[str, str] = field(default_factory=dict)
    _lengths: dict[str, int] = field(default_factory=dict)

    def url(self, **parameters: object) -> str:
        """The URL of the store, through the proxy."""
        given = "".join(f"&{name}={value}" for name, value in parameters.items())
        return f"{self.way}&schema={self.schema}{given}"

    @contextmanager
    def store(self, timeout: float, **parameters: object) -> Iterator[Witnessed]:
        """A store of one's own, through the proxy."""
        store = Witnessed(self.url(timeout=timeout, **parameters))
        try:
            yield store
        finally:
            self.proxy.arm()
            store.close()

    def trial(self, workflow: str, durability: str = "full") -> Trial:
        """A new run of a workflow."""
        return Trial(workflow, f"{workflow}-{next(_numbers)}", self.direct, durability)

    def undisturbed(self, workflow: str, store: Witnessed) -> tuple[str, int]:
        """Return the result of an undisturbed workflow, and how many statements it takes."""
        if workflow not in self._wanted:
            for _ in range(2):  # Twice, for the first makes connections and prepares statements.
                self.proxy.arm()
                trial = self.trial(workflow)
                self._wanted[workflow] = trial.drive(store).state
                self._lengths[workflow] = self.proxy.statements
                self.tally.judge("none", workflow, "undisturbed", trial.check("").violations)
        return self._wanted[workflow], self._lengths[workflow]


@contextmanager
def scene(tally: Tally, programs: Programs | None = None) -> Iterator[Scene]:
    """A server with a proxy before it, reached by Unix sockets."""
    with (
        running(programs or Programs.find()) as server,
        open_folder() as folder,
        before(server, tally, folder=folder) as proxy,
        seen(server, proxy, f"postgresql://postgres@/postgres?host={folder}", tally) as made,
    ):
        yield made


@contextmanager
def tcp_scene(tally: Tally, programs: Programs | None = None) -> Iterator[Scene]:
    """A server that asks for a password by SCRAM, with a proxy before it that speaks TLS, reached by TCP."""
    with open_folder() as folder:
        server = TcpServer(programs or Programs.find(), folder / "data")
        server.create()
        server.start()
        try:
            server.protect()
            certificate = make_certificate(folder)
            with before(server, tally, tls=certificate.context()) as proxy:
                place = f"postgres:{server.PASSWORD}@127.0.0.1:{proxy.port}"
                way = f"postgresql://{place}/postgres?sslmode=verify-full&sslrootcert={certificate.path}"
                with seen(server, proxy, way, tally) as made:
                    yield made
        finally:
            server.stop("immediate")


@contextmanager
def before(
    server: PostgresServer, tally: Tally, *, folder: Path | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[Proxy]:
    """A proxy before a server; at a socket in `folder`, or at a port."""
    control = Control(server, SCHEMA)
    target = ("127.0.0.1", port_of(server)) if folder is None else socket_of(server)
    proxy = Proxy(target, control.backends, folder=folder, tls=tls, seed=tally.seed)
    try:
        yield proxy
    finally:
        proxy.close()
        control.close()


@contextmanager
def seen(server: PostgresServer, proxy: Proxy, way: str, tally: Tally) -> Iterator[Scene]:
    """The scene before a proxy, with somebody who looks at the server without it."""
    control, direct = Control(server, SCHEMA), PostgresStore(server.url(SCHEMA))
    try:
        yield Scene(server, way, proxy, control, direct, tally, random.Random(tally.seed))
    finally:
        control.close()
        direct.close()
