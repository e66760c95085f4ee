# Written by docs/make_stubs.py from holdfast/names.py.

from holdfast.service.catalogue import Catalogue as Catalogue
from holdfast.service.reading import Reader as Reader
from holdfast.service.reading import RequestInvalid as RequestInvalid
from holdfast.service.roles import Caller as Caller
from holdfast.service.roles import Tokens as Tokens
from holdfast.service.service import ReadOnly as ReadOnly
from holdfast.service.service import Service as Service
from holdfast.service.service import TooManyRuns as TooManyRuns

__all__: list[str]
