# Written by docs/make_stubs.py from holdfast/names.py.

from holdfast.graph.patterns import ChainResult as ChainResult
from holdfast.graph.patterns import ParallelResult as ParallelResult
from holdfast.graph.patterns import TaskError as TaskError
from holdfast.graph.patterns import chain_node as chain_node
from holdfast.graph.patterns import conditional_node as conditional_node
from holdfast.graph.patterns import parallel_node as parallel_node
from holdfast.graph.patterns import process_chain as process_chain
from holdfast.graph.patterns import process_conditional as process_conditional
from holdfast.graph.patterns import process_parallel as process_parallel
from holdfast.graph.predicates import always as always
from holdfast.graph.predicates import and_ as and_
from holdfast.graph.predicates import key_equals as key_equals
from holdfast.graph.predicates import key_exists as key_exists
from holdfast.graph.predicates import not_ as not_
from holdfast.graph.predicates import or_ as or_

__all__: list[str]
