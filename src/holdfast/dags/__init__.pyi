# Written by docs/make_stubs.py from holdfast/names.py.

from holdfast.dags.definition import DAGInvalid as DAGInvalid
from holdfast.dags.definition import Task as Task
from holdfast.dags.executor import ControlledExecutor as ControlledExecutor
from holdfast.dags.executor import DAGExecutionResult as DAGExecutionResult
from holdfast.dags.planning import DAGAborted as DAGAborted
from holdfast.dags.planning import DAGState as DAGState
from holdfast.dags.planning import DecisionPoint as DecisionPoint
from holdfast.dags.tools import Tool as Tool
from holdfast.dags.tools import Tools as Tools

__all__: list[str]
