# The public names of this package, listed once: for type checkers, and for `__init__.py`, which loads them.

from freshq.simulate.engine import Simulation as Simulation
from freshq.simulate.engine import simulate_load as simulate_load
from freshq.simulate.load import ArrivalProcess as ArrivalProcess
from freshq.simulate.load import Burst as Burst
from freshq.simulate.load import Load as Load
from freshq.simulate.load import ServiceDistribution as ServiceDistribution
from freshq.simulate.load import Source as Source
from freshq.simulate.recording import Recording as Recording
from freshq.simulate.recording import read_recording as read_recording
from freshq.simulate.recording import read_trace as read_trace
from freshq.simulate.results import GroupResult as GroupResult
from freshq.simulate.results import LevelResult as LevelResult
from freshq.simulate.results import Result as Result
from freshq.simulate.results import summarize as summarize
from freshq.simulate.results import waits_in_time as waits_in_time
from freshq.simulate.stress import ChainResult as ChainResult
from freshq.simulate.stress import Clients as Clients
from freshq.simulate.stress import Dip as Dip
from freshq.simulate.stress import Slowdown as Slowdown
from freshq.simulate.stress import Stress as Stress
from freshq.simulate.stress import simulate_chains as simulate_chains
from freshq.simulate.stress import simulate_stressed as simulate_stressed
from freshq.simulate.sweep import Cell as Cell
from freshq.simulate.sweep import load_sweep as load_sweep
from freshq.simulate.sweep import policies as policies
