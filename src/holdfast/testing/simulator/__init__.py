"""A deterministic simulator: the real engine on a simulated clock, network and store, in one thread, from a seed."""

from holdfast.testing.simulator.choices import Choices
from holdfast.testing.simulator.connection import Connection
from holdfast.testing.simulator.faults import Fault
from holdfast.testing.simulator.process import Crashed, Process
from holdfast.testing.simulator.server import Server
from holdfast.testing.simulator.simulation import Simulation
from holdfast.testing.simulator.world import World

__all__ = ["Choices", "Connection", "Crashed", "Fault", "Process", "Server", "Simulation", "World"]
