# Written by docs/make_stubs.py from holdfast/names.py.

from holdfast.checkpoints.custom import CheckpointStore as CheckpointStore
from holdfast.checkpoints.data import CheckpointData as CheckpointData
from holdfast.checkpoints.data import CheckpointState as CheckpointState
from holdfast.checkpoints.data import PauseMetadata as PauseMetadata
from holdfast.checkpoints.store import CheckpointConfig as CheckpointConfig
from holdfast.checkpoints.store import CheckpointManager as CheckpointManager
from holdfast.checkpoints.store import GraphConfig as GraphConfig
from holdfast.checkpoints.store import InMemoryCheckpointStore as InMemoryCheckpointStore
from holdfast.checkpoints.store import JournalCheckpointStore as JournalCheckpointStore
from holdfast.checkpoints.store import PostgresCheckpointStore as PostgresCheckpointStore
from holdfast.checkpoints.store import SQLiteCheckpointStore as SQLiteCheckpointStore
from holdfast.checkpoints.store import default_checkpoint_config as default_checkpoint_config
from holdfast.checkpoints.store import default_graph_config as default_graph_config
from holdfast.checkpoints.store import get_checkpoint_store as get_checkpoint_store
from holdfast.checkpoints.store import register_checkpoint_store as register_checkpoint_store
from holdfast.checkpoints.tables import TablesReport as TablesReport
from holdfast.checkpoints.tables import write_tables as write_tables
from holdfast.engine.retention import periodic_cleanup as periodic_cleanup
from holdfast.graph.configured import ConfiguredGraph as ConfiguredGraph
from holdfast.workflows.responses import Result as Result
from holdfast.workflows.responses import pause_workflow as pause_workflow
from holdfast.workflows.responses import resume_workflow as resume_workflow

__all__: list[str]
