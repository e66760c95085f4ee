# Written by docs/make_stubs.py from holdfast/names.py.

from holdfast.capsules.exports import ExportedRun as ExportedRun
from holdfast.capsules.exports import export_run as export_run
from holdfast.capsules.imports import ImportedRun as ImportedRun
from holdfast.capsules.imports import import_run as import_run
from holdfast.capsules.signing import make_key_pair as make_key_pair
from holdfast.capsules.summary import CapsuleInfo as CapsuleInfo
from holdfast.capsules.summary import inspect_capsule as inspect_capsule
from holdfast.engine.transfer import CopyReport as CopyReport
from holdfast.engine.transfer import copy_runs as copy_runs

__all__: list[str]
