# Written by docs/make_stubs.py from holdfast/names.py.

from holdfast.engine.resume_plan import PlannedStep as PlannedStep
from holdfast.engine.resume_plan import ResumePlan as ResumePlan
from holdfast.engine.settings import Stats as Stats
from holdfast.engine.time_travel.queries import compare_runs as compare_runs
from holdfast.engine.time_travel.queries import diff_states as diff_states
from holdfast.engine.time_travel.queries import run_forks as run_forks
from holdfast.engine.time_travel.queries import run_history as run_history
from holdfast.engine.time_travel.rerun import Rerun as Rerun
from holdfast.engine.time_travel.rerun import RerunStep as RerunStep
from holdfast.views.changes import Difference as Difference
from holdfast.views.comparison import Comparison as Comparison
from holdfast.views.comparison import StateDifference as StateDifference
from holdfast.views.differences import apply_difference as apply_difference
from holdfast.views.differences import difference as difference
from holdfast.views.drawing import svg as svg
from holdfast.views.family import Family as Family
from holdfast.views.history import History as History
from holdfast.views.patch import PatchError as PatchError
from holdfast.views.patch import apply_patch as apply_patch
from holdfast.views.patch import json_patch as json_patch
from holdfast.views.usage import RunLedger as RunLedger

__all__: list[str]
