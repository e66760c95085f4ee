# Written by docs/make_stubs.py from holdfast/names.py.

from holdfast.integrity.check import check_store as check_store
from holdfast.integrity.repair import repair_run as repair_run
from holdfast.integrity.repair import repair_store as repair_store
from holdfast.integrity.report import Damage as Damage
from holdfast.integrity.report import Repair as Repair
from holdfast.integrity.report import RunReport as RunReport
from holdfast.integrity.report import StoreRepair as StoreRepair
from holdfast.integrity.report import StoreReport as StoreReport

__all__: list[str]
