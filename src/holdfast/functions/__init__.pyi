# Written by docs/make_stubs.py from holdfast/names.py.

from holdfast.functions.builtin_steps import ask as ask
from holdfast.functions.builtin_steps import context as context
from holdfast.functions.builtin_steps import now as now
from holdfast.functions.builtin_steps import random as random
from holdfast.functions.builtin_steps import sleep as sleep
from holdfast.functions.builtin_steps import uuid as uuid
from holdfast.functions.calls import carried as carried
from holdfast.functions.checks import FunctionWarning as FunctionWarning
from holdfast.functions.checks import check_function as check_function
from holdfast.functions.steps import StepFunction as StepFunction
from holdfast.functions.steps import step as step
from holdfast.functions.workflows import WorkflowFunction as WorkflowFunction
from holdfast.functions.workflows import workflow as workflow

__all__: list[str]
