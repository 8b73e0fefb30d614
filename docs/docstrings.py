"""What mkdocstrings needs to know of our docstrings, without a change to them."""

from __future__ import annotations

import re
from typing import Any

import griffe

# :class:`~gradrerank.settings.Settings` is shown as Settings, :func:`gradrerank.scoring.score` in full.
_ROLE = re.compile(r":(?:class|meth|func|mod|data|attr|math):`(~?)([^`]+)`")


class Docstrings(griffe.Extension):
    """Sphinx's roles become plain code, and fields of pydantic models the arguments of their class."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            text = _ROLE.sub(_as_code, obj.docstring.value)
            text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)  # the name that griffe knows
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Give a pydantic model, which has no __init__ of its own, the one that its fields make."""
        if cls.path.startswith("gradrerank") or "__init__" in cls.members:
            return
        fields = [a for a in cls.attributes.values() if a.annotation is not None and not a.name.startswith("_")]
        parameters = [
            griffe.Parameter(
                a.name, annotation=a.annotation, kind=griffe.ParameterKind.keyword_only, default=_default(a.value)
            )
            for a in fields
        ]
        if parameters:
            own = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
            cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(own, *parameters)))


def _as_code(role: re.Match[str]) -> str:
    name = role[2].rpartition(".")[2] if role[1] else role[2]
    return f"`{name}`"


def _default(value: Any) -> Any:
    """The default of a field, written plainly or in ``Field(...)``."""
    if not isinstance(value, griffe.ExprCall) or str(value.function) != "Field":
        return value
    given = {a.name: a.value for a in value.arguments if isinstance(a, griffe.ExprKeyword)}
    if "default_factory" in given:
        return f"{given['default_factory']}()"
    first = next((a for a in value.arguments if not isinstance(a, griffe.ExprKeyword)), None)
    return given.get("default", first)
