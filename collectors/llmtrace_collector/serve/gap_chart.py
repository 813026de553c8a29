"""Draw the gaps between a stream's chunks over its time, with the longest marked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from llmtrace.core.gap_slots import GapSlots
from llmtrace_collector.serve.page_frame import ms

_NS: Final = 1_000_000_000
_WIDE: Final = 1000.0
_HIGH: Final = 100.0
_MIN_HIGH: Final = 1.0


def gap_chart(gaps: GapSlots) -> str:
    """Return a picture with a bar per slot, which shows its time and length when pointed at."""
    longest = max((one for one in gaps.longest_ns if one is not None), default=None)
    if longest is None:
        return ""
    marked = gaps.longest_ns.index(longest)
    said = f"Longest gap {ms(longest / _NS)}, {_when(gaps, marked)} after the first content"
    whole = len(gaps.longest_ns) * gaps.slot_ns / _NS
    return (
        f'<h3>Gaps over time</h3><p>{said}.</p><svg class="gaps" viewBox="0 0 {_WIDE:.0f} '
        f'{_HIGH:.0f}" preserveAspectRatio="none" role="img" aria-label="{said}">'
        f"{''.join(_bars(gaps, longest, marked))}</svg>"
        f'<p class="ends soft"><span>first content</span><span>{whole:,.1f} s later</span></p>'
    )


def _bars(gaps: GapSlots, longest: int, marked: int) -> Iterator[str]:
    """Yield a bar per slot; a longer gap also covers the slots before, in which no chunk came."""
    wide, free = _WIDE / len(gaps.longest_ns), 0
    for slot, gap in enumerate(gaps.longest_ns):
        if gap is None:
            continue
        begin = max(free, slot + 1 - max(1, gap / gaps.slot_ns))
        high = max(_MIN_HIGH, _HIGH * gap / longest) if longest else _MIN_HIGH
        yield (
            f'<rect class="{"failed" if slot == marked else "s-decode"}" x="{wide * begin:.2f}" '
            f'y="{_HIGH - high:.2f}" width="{wide * (slot + 1 - begin):.2f}" height="{high:.2f}">'
            f"<title>{_when(gaps, slot)}: {ms(gap / _NS)}</title></rect>"
        )
        free = slot + 1


def _when(gaps: GapSlots, slot: int) -> str:
    begin, end = (number * gaps.slot_ns / _NS for number in (slot, slot + 1))
    return f"{begin:,.1f} to {end:,.1f} s"
