"""Pydantic models, secrets, URLs and validation errors keep everything the instance holds."""

from __future__ import annotations

import functools
import threading
import warnings
from typing import Annotated, Any, Generic, Literal, TypeVar

import pydantic
import pytest
from langchain_core.documents import Document
from property.strategies import decode, encode, roundtrip, same
from pydantic import (
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    PostgresDsn,
    PrivateAttr,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    ValidationError,
    computed_field,
    field_validator,
)
from pydantic_core import PydanticCustomError

from langgraph_resilient.codec.types import (
    SECRET_CODES,
    StandInError,
    TypePolicy,
    Unrestored,
    Unsupported,
    degrade_exception,
    reduce,
    restore,
)
from langgraph_resilient.errors import TypeNotAllowed

T = TypeVar("T")


class Animal(BaseModel):
    name: str


class Dog(Animal):
    breed: str


class Session(BaseModel):
    model_config = ConfigDict(populate_by_name=False)
    user: str
    token: str = Field(default="", exclude=True)
    number: int = Field(default=0, alias="theNumber")
    pet: Animal | None = None
    seen: dict[str, int] = Field(default_factory=dict)
    _step: int = PrivateAttr(default=0)
    _unset: int = PrivateAttr()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def label(self) -> str:
        return f"{self.user}!"

    @functools.cached_property
    def lock(self) -> Any:
        return threading.Lock()


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")
    x: int


class Box(BaseModel, Generic[T]):
    value: T


class Names(RootModel[list[str]]):
    pass


class Kind(BaseModel):
    kind: Literal["a", "b"] = "a"


class Positive(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def _check(cls, value: int) -> int:
        if value < 0:
            raise ValueError(f"{value} is below {{0}}")
        return value


@pydantic.dataclasses.dataclass
class Checked:
    n: int
    items: list[int] = pydantic.Field(default_factory=list)


def _session() -> Session:
    session = Session(user="u", token="t-1", theNumber=3, pet=Dog(name="rex", breed="lab"))
    session._step = 4
    return session


@pytest.mark.parametrize(
    "value",
    [
        _session(),
        Frozen(x=1, more=[1]),  # type: ignore[call-arg]
        Box[int](value=1),
        Box[list[Dog]](value=[Dog(name="n", breed="b")]),
        Box[Box[int]](value=Box[int](value=2)),
        Box(value="free"),
        Names(["a"]),
        Kind(),
        Checked(1),
        Document(page_content="x", metadata={"a": (1,)}, id="7"),
    ],
    ids=repr,
)
def test_a_model_comes_back_with_everything_it_holds(value: Any) -> None:
    back = roundtrip(value)
    assert same(back, value)
    assert back == value


def test_excluded_aliased_private_and_computed_parts_are_kept() -> None:
    back = roundtrip(_session())
    assert (back.token, back.number, back._step, back.label) == ("t-1", 3, 4, "u!")
    assert isinstance(back.pet, Dog)
    assert back.model_fields_set == {"user", "token", "number", "pet"}
    with pytest.raises(AttributeError):
        _ = back._unset


def test_cached_properties_of_a_model_are_not_stored() -> None:
    session = _session()
    assert session.lock
    assert "lock" not in vars(roundtrip(session))


def test_a_value_that_a_validator_would_reject_comes_back() -> None:
    model = Positive.model_construct(n=-1)
    assert roundtrip(model).n == -1


def test_a_model_may_gain_and_lose_fields() -> None:
    code, payload = reduce(_session())
    state = {"user": "u", "gone": 1}
    back = restore(code, [payload[0], state, ["user"], None, None], TypePolicy())
    assert (back.user, back.token, back.seen, back._step) == ("u", "", {}, 0)
    assert back.gone == 1
    assert back.model_fields_set == {"user"}


def test_a_generic_model_whose_argument_is_gone_gives_unrestored() -> None:
    data = encode(Box[Dog](value=Dog(name="n", breed="b"))).replace(b"Dog", b"Dxg")
    back = decode(data)
    assert isinstance(back, Unrestored)
    assert encode(back) == data


def test_strict_mode_allows_a_generic_model_by_langgraphs_name_for_it() -> None:
    data = encode(Box[int](value=1))
    allowed = frozenset({(__name__, "Box[int]")})
    assert decode(data, TypePolicy(strict=True, allowed=allowed)) == Box[int](value=1)
    with pytest.raises(TypeNotAllowed):
        decode(data, TypePolicy(strict=True))


def test_a_model_of_pydantic_v1_comes_back_equal() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        v1 = pytest.importorskip("pydantic.v1")

    class Old(v1.BaseModel):  # type: ignore[name-defined, misc]
        a: int
        b: list[int] = []
        _hidden: int = v1.PrivateAttr(default=1)

    old = Old(a=1)
    old._hidden = 5
    back = roundtrip(old)
    assert type(back) is Old
    assert back == old
    assert back.__fields_set__ == {"a"}
    assert back._hidden == 5
    secret = v1.SecretStr("s")
    assert roundtrip(secret) == secret
    assert reduce(secret)[0] in SECRET_CODES


@pytest.mark.parametrize(
    "value",
    [SecretStr("s"), SecretBytes(b"s"), Secret[int](3), type("Own", (SecretStr,), {})("s")],
    ids=lambda value: type(value).__name__,
)
def test_a_secret_has_a_code_of_its_own_and_comes_back(value: Any) -> None:
    code, _ = reduce(value)
    assert code in SECRET_CODES
    back = roundtrip(value)
    assert type(back) is type(value)
    assert back.get_secret_value() == value.get_secret_value()


def test_a_secret_does_not_show_when_its_class_is_gone() -> None:
    class Own(SecretStr):
        pass

    back = decode(encode(Own("hush")).replace(b"Own", b"Oxn"))
    assert isinstance(back, Unrestored)
    assert "hush" not in repr(back)


@pytest.mark.parametrize(
    "value",
    [
        HttpUrl("https://exämple.org/a?b=c#d"),
        AnyUrl("file:///x"),
        PostgresDsn("postgres://u:p@h1:1,h2:2/db"),
        AnyUrl("s3://b/k"),
    ],
    ids=str,
)
def test_a_url_comes_back_equal(value: Any) -> None:
    back = roundtrip(value)
    assert type(back) is type(value)
    assert back == value
    assert str(back) == str(value)


@pytest.mark.parametrize(
    ("model", "data"),
    [(Positive, {"n": "x"}), (Positive, {"n": -1}), (Session, {}), (Kind, {"kind": "c"})],
)
def test_a_validation_error_comes_back_with_its_errors(model: Any, data: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        model(**data)
    back = roundtrip(caught.value)
    assert isinstance(back, Exception)
    assert str(back) == str(caught.value)
    assert type(back) is ValidationError
    assert len(back.errors()) == len(caught.value.errors())


def test_a_validation_error_with_what_cannot_be_stored_keeps_its_text() -> None:
    with pytest.raises(ValidationError) as caught:
        Positive(n=threading.Lock())  # type: ignore[arg-type]
    with pytest.raises(Unsupported):
        encode(caught.value)
    code, payload = degrade_exception(caught.value)
    back = restore(code, payload, TypePolicy())
    assert isinstance(back, StandInError)
    assert str(back) == str(caught.value)


def test_a_validation_error_of_a_users_own_kind_comes_back() -> None:
    def fail(value: Any) -> Any:
        raise PydanticCustomError("my_kind", "odd {what} {{x}}", {"what": 3})

    adapter = pydantic.TypeAdapter(Annotated[int, pydantic.AfterValidator(fail)])
    with pytest.raises(ValidationError) as caught:
        adapter.validate_python(1)
    back = roundtrip(caught.value)
    assert str(back) == str(caught.value)
    assert back.errors()[0]["type"] == "my_kind"


def test_slots_of_a_model_are_kept() -> None:
    class WithSlot(BaseModel):
        __slots__ = ("mark",)
        x: int

    model = WithSlot(x=1)
    object.__setattr__(model, "mark", [1])
    back = roundtrip(model)
    assert back == model
    assert back.mark == [1]
