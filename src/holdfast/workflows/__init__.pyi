# Written by docs/make_stubs.py from holdfast/names.py.

from holdfast.graph.graph import CircuitBreaker as CircuitBreaker
from holdfast.workflows.reading.problems import WorkflowInvalid as WorkflowInvalid
from holdfast.workflows.workflow import Workflow as Workflow
from holdfast.workflows.workflow import app_of_run as app_of_run
from holdfast.workflows.workflow import load_workflow as load_workflow

__all__: list[str]
