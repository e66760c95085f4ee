"""A deterministic simulator: the real engine on a simulated clock, network and store, in one thread, from a seed."""

from tests.simulator.choices import Choices
from tests.simulator.connection import Connection
from tests.simulator.faults import Fault
from tests.simulator.process import Crashed, Process
from tests.simulator.server import Server
from tests.simulator.simulation import Simulation
from tests.simulator.world import World

__all__ = ["Choices", "Connection", "Crashed", "Fault", "Process", "Server", "Simulation", "World"]
