# Written by docs/make_stubs.py from holdfast/names.py.

from holdfast.service.links import AnswerLinks as AnswerLinks
from holdfast.service.roles import Caller as Caller
from holdfast.service.roles import Tokens as Tokens
from holdfast.service.targets import Target as Target
from holdfast.web.serving import asgi as asgi

__all__: list[str]
