"""Completes what griffe sees of the API: blocking methods, constructors, examples, defaults of settings."""

import contextlib
import re
from collections.abc import Iterator
from copy import copy
from typing import Any

import griffe

WRAPPERS = {"blocking", "on_loop", "_waiting"}
"""Functions that make a blocking method of an asyncio client's."""
EXAMPLE = re.compile(r"^>>> .*\n?(?:^(?:>>>|\.\.\.).*\n?)*", re.MULTILINE)
PROMPT = re.compile(r"^(?:>>>|\.\.\.) ?", re.MULTILINE)


class ApiReference(griffe.Extension):
    """Completes the objects of a package once all are loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        errors = error_names(pkg)
        for found in list(objects(pkg)):
            if found.docstring is not None:
                found.docstring.value = readable(found.docstring.value, errors)
            if isinstance(found, griffe.Function):
                show_constants(found, pkg)
            if isinstance(found, griffe.Class):
                add_methods(found, pkg)
                if has_base(found, "Struct"):
                    add_constructor(found)
                if has_base(found, "Enum", "IntEnum"):
                    name_values(found)
                show_defaults(found)


def objects(parent: griffe.Object) -> Iterator[griffe.Object]:
    """Yield the object and everything in it; names that are imported belong to where they are from."""
    yield parent
    for member in parent.members.values():
        if isinstance(member, griffe.Object):
            yield from objects(member)


def error_names(package: griffe.Module) -> re.Pattern[str]:
    """Return a pattern of the errors that the package exports."""
    errors = f"{package.path}.errors."
    exported = (
        name
        for name, member in package.members.items()
        if isinstance(member, griffe.Alias) and member.target_path.startswith(errors)
    )
    return re.compile(rf"(?<![\w`.])({'|'.join(exported)})(?![\w`(])")


def readable(docstring: str, errors: re.Pattern[str]) -> str:
    """Return a docstring as Markdown: errors are links, examples are blocks that can be copied."""
    parts, end = [], 0
    for example in EXAMPLE.finditer(docstring):
        code = PROMPT.sub("", example[0]).rstrip("\n")
        parts += [linked(docstring[end : example.start()], errors), f"```python\n{code}\n```\n"]
        end = example.end()
    return "".join([*parts, linked(docstring[end:], errors)])


def linked(text: str, errors: re.Pattern[str]) -> str:
    return errors.sub(r"[\1][skylark.\1]", text)


def has_base(found: griffe.Class, *names: str) -> bool:
    return any(str(base).rpartition(".")[2] in names for base in found.bases)


def name_values(enum: griffe.Class) -> None:
    """Add the values of an enumeration to its docstring."""
    values = [name for name, member in enum.members.items() if isinstance(member, griffe.Attribute)]
    text = f"{enum.docstring.value}\n\n" if enum.docstring is not None else ""
    text += f"Values: {', '.join(f'`{name}`' for name in values)}."
    enum.docstring = griffe.Docstring(text, parent=enum)


def add_methods(owner: griffe.Class, package: griffe.Module) -> None:
    """Turn `queues = blocking(AsyncProducer.queues)` into a method with the parameters of the original."""
    for name, member in list(owner.members.items()):
        value = member.value if isinstance(member, griffe.Attribute) else None
        if not isinstance(value, griffe.ExprCall) or str(value.function) not in WRAPPERS:
            continue
        argument = value.arguments[0]
        assert isinstance(argument, griffe.Expr)
        original = package[argument.canonical_path.removeprefix(f"{package.name}.")]
        method = copy(original)
        method.labels = original.labels - {"async"}
        owner.set_member(name, method)


def add_constructor(struct: griffe.Class) -> None:
    """Give a msgspec struct the `__init__` that its fields imply."""
    fields = [
        griffe.Parameter(
            field.name,
            annotation=field.annotation,
            kind=griffe.ParameterKind.positional_or_keyword,
            default=field.value,
        )
        for field in struct.members.values()
        if isinstance(field, griffe.Attribute)
        and field.annotation is not None
        and "property" not in field.labels
    ]
    own = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    struct.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(own, *fields)))


def show_constants(function: griffe.Function, package: griffe.Module) -> None:
    """Replace a constant among the defaults of parameters by its value."""
    for parameter in function.parameters:
        name = parameter.default
        if not isinstance(name, griffe.ExprName):
            continue
        with contextlib.suppress(KeyError):  # a name of another package, or of a class
            constant = package[name.canonical_path.removeprefix(f"{package.name}.")]
            if isinstance(constant, griffe.Alias):
                constant = constant.final_target
            if isinstance(constant, griffe.Attribute):
                parameter.default = constant.value


def show_defaults(settings: griffe.Class) -> None:
    """Replace `setting(3000, "sendMsgTimeout", 1)` by its default."""
    init = settings.members.get("__init__")
    parameters = list(init.parameters) if isinstance(init, griffe.Function) else []
    for holder, name in (
        *((member, "value") for member in settings.members.values() if isinstance(member, griffe.Attribute)),
        *((parameter, "default") for parameter in parameters),
    ):
        value = getattr(holder, name)
        if isinstance(value, griffe.ExprCall) and str(value.function) == "setting":
            setattr(holder, name, value.arguments[0])
