# Written by docs/make_stubs.py from holdfast/names.py.

from holdfast.state.codec import Unknown as Unknown
from holdfast.state.schema import TaskResult as TaskResult
from holdfast.state.schema import WorkflowState as WorkflowState
from holdfast.state.schema import add as add
from holdfast.state.schema import append as append
from holdfast.state.schema import keep_last as keep_last
from holdfast.state.schema import merge as merge
from holdfast.state.schema import union as union
from holdfast.state.state import State as State
from holdfast.state.types import register_type as register_type

__all__: list[str]
