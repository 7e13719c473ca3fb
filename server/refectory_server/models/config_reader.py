"""`ConfigReader`: typed, checked access to a Hugging Face config dict.

Every complaint names field, value and what is allowed. Knows no family.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any

from refectory_server.errors import StartupError

MAX_INT32 = 2**31 - 1


class ConfigReader:
    """Reads fields of `values`; `prefix` is put before their names in messages.

    A field that is null counts as absent. Raises `StartupError`: `ModelInvalid` for a missing or
    malformed field, `UnsupportedModelFeature` for a value that no executor computes yet.
    """

    def __init__(self, values: dict[str, Any], prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix

    def has(self, field: str) -> bool:
        return self._values.get(field) is not None

    def positive_int(self, field: str, default: int | None = None) -> int:
        return self.int_from(1, field, default)

    def int_from(
        self, minimum: int, field: str, default: int | None = None, *, maximum: int = MAX_INT32
    ) -> int:
        value = self._get(field, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self._invalid(field, value, f"an integer from {minimum}")
        if value > maximum:
            raise self._invalid(field, value, f"an integer from {minimum} to {maximum}")
        return value

    def positive_float(self, field: str, default: float | None = None) -> float:
        value = self._get(field, default)
        if not _is_positive_float(value):
            raise self._invalid(field, value, "a number above 0")
        return float(value)

    def nullable_positive_int(self, field: str, default: int | None) -> int | None:
        """`default` where the field is absent; None where it is null."""
        is_none = self._values.get(field, default) is None
        return None if is_none else self.positive_int(field, default)

    def nullable_positive_float(self, field: str) -> float | None:
        return self.positive_float(field) if self.has(field) else None

    def positive_floats(self, field: str) -> tuple[float, ...]:
        values = self._get(field, None)
        if not isinstance(values, list) or not all(map(_is_positive_float, values)):
            raise self._invalid(field, values, "a list of numbers above 0")
        return tuple(float(value) for value in values)

    def boolean(self, field: str, default: bool) -> bool:
        value = self._get(field, default)
        if not isinstance(value, bool):
            raise self._invalid(field, value, "true or false")
        return value

    def group(self, field: str) -> ConfigReader:
        value = self._get(field, {})
        if not isinstance(value, dict):
            raise self._invalid(field, value, "an object")
        return ConfigReader(value, f"{self._prefix}{field}.")

    def choices(self, field: str, supported: Sequence[str], length: int) -> tuple[str, ...]:
        """A list of `length` of `supported`."""
        values = self._get(field, None)
        if not isinstance(values, list) or len(values) != length:
            raise self._invalid(field, values, f"a list of {length} items")
        for value in values:
            if value not in supported:
                raise self._unsupported(field, value, ", ".join(supported))
        return tuple(values)

    def choice(self, field: str, supported: Sequence[str], default: str) -> str:
        """One of `supported`; any other value is a feature that is not computed yet."""
        value = self._get(field, default)
        if value not in supported:
            raise self._unsupported(field, value, ", ".join(supported))
        return str(value)

    def only(self, field: str, supported: Any) -> None:
        """Refuse the model unless `field` is absent or `supported`."""
        value = self._get(field, supported)
        if value != supported:
            raise self._unsupported(field, value, str(supported))

    def absent(self, field: str) -> None:
        """Refuse the model where `field` asks for anything at all."""
        value = self._values.get(field)
        if value not in (None, 0, False, {}, []):
            raise self._unsupported(field, value, "none")

    def known(self, fields: Collection[str]) -> None:
        """Refuse the model where any other field asks for something."""
        for field, value in self._values.items():
            if value is not None and field not in fields:
                raise StartupError(
                    f"the model's config has {self._prefix}{field} {value!r}, which has no meaning "
                    f"there; allowed: {', '.join(fields)}",
                    reason="UnsupportedModelFeature",
                )

    def _get(self, field: str, default: Any) -> Any:
        value = self._values.get(field)
        if value is None:
            value = default
        if value is None:
            raise StartupError(
                f"the model's config lacks {self._prefix}{field}", reason="ModelInvalid"
            )
        return value

    def _invalid(self, field: str, value: Any, allowed: str) -> StartupError:
        return StartupError(
            f"the model's config has {self._prefix}{field} {value!r}; allowed is {allowed}",
            reason="ModelInvalid",
        )

    def _unsupported(self, field: str, value: Any, supported: str) -> StartupError:
        return StartupError(
            f"the model's config has {self._prefix}{field} {value!r}, which is not supported yet; "
            f"supported: {supported}",
            reason="UnsupportedModelFeature",
        )


def _is_positive_float(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= sys.float_info.max
