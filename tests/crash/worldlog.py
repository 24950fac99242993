"""The servers of `effects` as the crash kit's log of effects."""

from __future__ import annotations

from uuid import uuid4

from effects import REFUSED, TAKEN, World

from langgraph_resilient.testing import EffectLog, LoggedEffect
from langgraph_resilient.testing.faults import active, fault_point


class WorldLog(EffectLog):
    """The servers' database as the log of a sweep: the effects of one run after the other."""

    def __init__(self, world: World):
        super().__init__(world.path)
        self.world = world
        self.clear()

    def clear(self) -> None:
        """What happens from now on belongs to a new run."""
        self.run = uuid4().hex

    def entries(self) -> list[LoggedEffect]:
        """The effects of this run; what dead clients had sent is waited for."""
        self.world.quiet()
        return [
            LoggedEffect(
                name=f"{row.kind} {row.label}",
                key=row.key or None,
                call=(row.key,) if row.key else (),
                result=row.receipt,
                pid=0,
            )
            for row in self.world.rows(self.run)
        ]

    def act(self, kind: str, label: str, key: str) -> str:
        """Let an effect happen; the receipt. Two moments lie inside the request."""
        fault_point("effect.before")
        faults = active()
        fault = TAKEN if faults is not None and faults.due("effect.taken") else None
        fault = REFUSED if faults is not None and faults.due("effect.refused") else fault
        receipt: str = getattr(self.world, kind)(self.run, label, key, fault)
        fault_point("effect.after")
        return receipt
