"""Which of the user's types are stored, under which tags, and how they survive a change of the class."""

import enum
import importlib
import sys
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar

import pydantic
import pytest

from holdfast.errors import CodecError
from holdfast.state import types as types_module
from holdfast.state.codec import Codec
from holdfast.state.types import Types, declared_types, register_type


@pytest.fixture(autouse=True)
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types_module, "_registered", types_module._Registry())


def through(value: Any, *classes: type) -> Any:
    codec = Codec(Types.of(*classes))
    return codec.decode(codec.encode(value))


def read_as(value: Any, old: type, new: type) -> Any:
    """Store `value` of the class `old`, read it with `new` under the same tag."""
    new.__qualname__ = old.__qualname__
    return Codec(Types.of(new)).decode(Codec(Types.of(old)).encode(value))


class Colour(enum.Enum):
    RED = 1


class Inner(pydantic.BaseModel):
    n: int = 0


class Model(pydantic.BaseModel):
    name: str = pydantic.Field(alias="theName")
    inner: Inner | None = None
    many: list[Inner] = []
    _hidden: int = pydantic.PrivateAttr(default=3)


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", frozen=True)
    n: int


def test_a_dataclass_is_rebuilt_without_running_its_code() -> None:
    ran: list[str] = []

    @dataclass(frozen=True, slots=True)
    class Guarded:
        n: int
        half: int = field(init=False, default=0)
        start: InitVar[int] = 0

        def __post_init__(self, start: int) -> None:
            ran.append("post_init")
            object.__setattr__(self, "half", self.n // 2)

    value = Guarded(10)
    ran.clear()

    back = through(value, Guarded)

    assert back == value and back.half == 5
    assert ran == []


def test_a_field_that_was_added_gets_its_default_and_a_removed_one_is_ignored() -> None:
    @dataclass
    class Old:
        kept: int
        gone: int

    @dataclass
    class New:
        kept: int
        added: int = 7
        made: list[int] = field(default_factory=lambda: [8])

    back = read_as(Old(1, 2), Old, New)

    assert (back.kept, back.added, back.made) == (1, 7, [8])
    assert not hasattr(back, "gone")


def test_a_field_that_was_added_without_a_default_is_an_error_that_names_it() -> None:
    @dataclass
    class Old:
        kept: int

    @dataclass
    class New:
        kept: int
        added: int

    with pytest.raises(CodecError, match=r"no field 'added'.*add a default"):
        read_as(Old(1), Old, New)


def test_a_dataclass_that_is_also_a_list_is_refused_for_its_items_would_be_lost() -> None:
    @dataclass
    class Listed(list[int]):
        n: int = 0

    with pytest.raises(CodecError, match="extends a built-in type"):
        Types.of(Listed)


def test_a_model_comes_back_exactly_and_unvalidated() -> None:
    model = Model(theName="a", inner=Inner(), many=[Inner(n=2)])
    model._hidden = 9
    model.name = 5  # type: ignore[assignment]

    back = through(model, Model, Inner)

    assert back == model and type(back.inner) is Inner
    assert back._hidden == 9
    assert back.model_fields_set == model.model_fields_set == {"name", "inner", "many"}
    assert back.inner.model_fields_set == set()


def test_a_model_keeps_its_extra_fields() -> None:
    value = Open(n=1, more={"a": 2})
    assert through(value, Open) == value
    assert through(value, Open).more == {"a": 2}
    assert through(Open(n=1), Open).model_extra == {}


def test_a_private_attribute_that_was_added_gets_its_default() -> None:
    class Old(pydantic.BaseModel):
        n: int

    class New(pydantic.BaseModel):
        n: int
        added: list[int] = pydantic.Field(default_factory=list)
        _hidden: int = pydantic.PrivateAttr(default=4)

    back = read_as(Old(n=1), Old, New)

    assert (back.n, back.added, back._hidden) == (1, [], 4)
    assert back.model_fields_set == {"n"}


def test_a_model_with_a_new_required_field_is_an_error_that_names_it() -> None:
    class Old(pydantic.BaseModel):
        n: int

    class New(pydantic.BaseModel):
        n: int
        added: int

    with pytest.raises(CodecError, match="no field 'added'"):
        read_as(Old(n=1), Old, New)


def test_what_a_model_hides_is_named_when_it_cannot_be_stored() -> None:
    model = Model(theName="a")
    model._hidden = open  # type: ignore[assignment]
    with pytest.raises(CodecError, match=r"cannot store value\._hidden: "):
        through(model, Model)
    model = Model(theName="a", inner=Inner.model_construct(n=open))
    with pytest.raises(CodecError, match=r"cannot store value\.inner\.n: "):
        through(model, Model, Inner)


def test_a_generic_model_is_stored_under_its_full_name() -> None:
    T = TypeVar("T")

    class Box(pydantic.BaseModel, Generic[T]):
        item: T

    boxes = [Box[int](item=1), Box[str](item="a")]
    back = through(boxes, Box[int], Box[str])
    assert [type(box) for box in back] == [Box[int], Box[str]]


def test_a_named_tuple_that_grew_gets_the_default() -> None:
    class Old(NamedTuple):
        y: int

    class New(NamedTuple):
        x: int = 5
        y: int = 6

    assert read_as(Old(1), Old, New) == (5, 1)


def test_a_registered_type_goes_through_its_own_functions() -> None:
    class Money:
        def __init__(self, cents: int) -> None:
            self.cents = cents

    register_type(Money, encode=lambda money: money.cents, decode=Money)

    back = Codec().decode(Codec().encode([Money(5)]))

    assert type(back[0]) is Money and back[0].cents == 5


def test_an_error_in_such_a_function_is_a_codec_error_with_the_place() -> None:
    class Broken:
        pass

    def fail(_: Any) -> Any:
        raise ZeroDivisionError("by zero")

    register_type(Broken, encode=fail, decode=fail)
    with pytest.raises(CodecError, match=r"cannot store value\['a'\]: ZeroDivisionError: by zero"):
        Codec().encode({"a": Broken()})
    register_type(Broken, encode=lambda _: 1, decode=fail)
    with pytest.raises(CodecError, match=r"cannot rebuild a stored .*Broken.*ZeroDivisionError"):
        Codec().decode(Codec().encode(Broken()))


def test_register_type_decorates_with_and_without_a_name() -> None:
    @register_type
    @dataclass
    class Plain:
        n: int

    @register_type(name="second")
    @dataclass
    class Named:
        n: int

    assert Codec().decode(Codec().encode([Plain(1), Named(2)])) == [Plain(1), Named(2)]
    assert b"second" in Codec().encode(Named(2))


def test_a_type_registered_later_is_known_to_a_codec_made_before() -> None:
    codec = Codec()
    register_type(Colour)
    assert codec.decode(codec.encode(Colour.RED)) is Colour.RED


def test_a_registration_after_the_schema_keeps_old_data_readable() -> None:
    types = Types.of(Colour)
    old = Codec(types).encode(Colour.RED)
    register_type(Colour, name="colour")
    assert Codec(types).decode(old) is Colour.RED
    assert b"colour" in Codec(types).encode(Colour.RED)


def test_including_leaves_the_narrower_types_as_they_were() -> None:
    narrow = Types.of(Colour)
    wide = narrow.including([Inner])
    assert Inner in wide and Colour in wide and Inner not in narrow


@pytest.mark.parametrize(
    "wrong", [{"encode": repr}, {"decode": repr}, {"name": ""}, {"name": "numpy:ndarray"}]
)
def test_a_half_registration_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CodecError):
        register_type(Inner, **wrong)


def test_an_ordinary_class_needs_functions_and_the_error_says_so() -> None:
    class Ordinary:
        pass

    for attempt in (lambda: Types.of(Ordinary), lambda: register_type(Ordinary)):
        with pytest.raises(CodecError, match=r"register_type\(Ordinary, encode=..., decode=...\)"):
            attempt()


def module(tmp_path: Path, name: str, body: str) -> Any:
    (tmp_path / f"{name}.py").write_text("from dataclasses import dataclass\n" + body)
    importlib.invalidate_caches()
    return importlib.import_module(name)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("first_app", "second_app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


ITEM = "@dataclass\nclass Item:\n    n: int = 1\n"


def test_two_types_of_one_name_are_refused_until_one_is_renamed(modules: Path) -> None:
    first, second = module(modules, "first_app", ITEM), module(modules, "second_app", ITEM)

    with pytest.raises(CodecError, match=r"first_app.Item and second_app.Item.*name="):
        Types.of(first.Item, second.Item)
    register_type(first.Item)
    with pytest.raises(CodecError, match="two types are called 'Item'"):
        Types.of(second.Item)
    register_type(second.Item, name="second.Item")

    codec = Codec()
    back = codec.decode(codec.encode([first.Item(), second.Item()]))
    assert [type(item) for item in back] == [first.Item, second.Item]


def test_a_reloaded_type_takes_over_and_old_instances_can_still_be_stored(modules: Path) -> None:
    app = module(modules, "first_app", ITEM)
    register_type(app.Item)
    old = app.Item(5)
    importlib.reload(app)
    register_type(app.Item)

    back = Codec().decode(Codec().encode(old))

    assert type(back) is app.Item and type(old) is not app.Item


def test_a_script_and_its_import_agree(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = module(modules, "first_app", ITEM)
    script: dict[str, Any] = {"__name__": "__main__"}
    exec((modules / "first_app.py").read_text(), script)
    register_type(app.Item)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(modules / "first_app.py"), raising=False)

    register_type(script["Item"])

    assert type(Codec().decode(Codec().encode(app.Item()))) is script["Item"]


class Deep(NamedTuple):
    colour: "Colour"


@dataclass
class Branch:
    children: "list[Branch]"
    deep: dict[str, tuple[Deep, ...]]


class Schema(TypedDict, total=False):
    branch: Annotated[list[Branch], "a reducer"]
    maybe: Optional[Inner]  # noqa: UP045
    out_of_reach: "NoSuchName"  # type: ignore[name-defined]  # noqa: F821


Alias = NewType("Alias", Deep)


class Only(enum.Enum):
    ONE = 1


@pytest.mark.parametrize(
    ("annotation", "found"),
    [
        (int, []),
        (list[dict[str, Colour]], [Colour]),
        (Colour | None, [Colour]),
        (Annotated[Deep, Inner], [Deep, Colour]),
        (Alias, [Deep, Colour]),
        (Literal[Only.ONE], [Only]),
        (Model, [Model, Inner]),
        (Branch, [Branch, Deep, Colour]),
        (Schema, [Branch, Deep, Colour, Inner]),
        (tuple[Inner, ...] | Open, [Inner, Open]),
        ("unresolved", []),
        (None, []),
    ],
)
def test_every_storable_type_in_an_annotation_is_found(annotation: Any, found: list[type]) -> None:
    assert declared_types(annotation) == found


def test_a_class_inside_a_function_may_refer_to_itself() -> None:
    @dataclass
    class Local:
        again: "list[Local]"
        colour: "Colour"

    assert declared_types(Local) == [Local, Colour]


def test_a_generic_dataclass_and_its_argument_are_found() -> None:
    T = TypeVar("T", bound=Inner)

    @dataclass
    class Box(Generic[T]):
        item: T

    assert declared_types(list[Box[Colour]]) == [Box, Inner, Colour]
