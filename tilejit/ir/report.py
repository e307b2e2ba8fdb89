"""Lines of a kernel's report as records."""
from __future__ import annotations

from typing import Any, Union

Number = Union[int, str, bool]


class Record(str):
    """A line of a report."""

    kind: str
    at: str
    numbers: dict[str, Number]

    def __new__(cls, kind: str, text: str, at: str = "", **numbers: Number) -> Record:
        record = super().__new__(cls, text)
        record.kind, record.at, record.numbers = kind, at, numbers
        return record

    def data(self) -> dict[str, Any]:
        return {"kind": self.kind, "at": self.at, "numbers": self.numbers, "text": str(self)}

    @classmethod
    def of(cls, data: dict[str, Any] | str) -> Record:
        """The record that `data` gave; a bare line is a remark."""
        return cls("remark", data) if isinstance(data, str) else \
            cls(data["kind"], data["text"], data["at"], **data["numbers"])

    def __reduce__(self) -> tuple[Any, ...]:
        return Record.of, (self.data(),)
