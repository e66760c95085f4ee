# Written by docs/make_stubs.py from holdfast/names.py.

from holdfast.fleet.catalog import Catalog as Catalog
from holdfast.fleet.cron import Cron as Cron
from holdfast.fleet.queues import Limits as Limits
from holdfast.fleet.queues import Rate as Rate
from holdfast.fleet.schedules import Schedule as Schedule
from holdfast.fleet.schedules import Schedules as Schedules
from holdfast.fleet.worker import History as History
from holdfast.fleet.worker import Worker as Worker
from holdfast.fleet.worker import WorkerEvent as WorkerEvent

__all__: list[str]
