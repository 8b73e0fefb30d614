"""What all plots share: colours, axes, and text from outside that is drawn as it is written."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gradrerank.display import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap
    from matplotlib.text import Text

BLUE, ORANGE, GREY = "#2166ac", "#e08214", "#767676"
# Colours of Okabe and Ito, which colour-blind people tell apart, with hatches for print; the last is for the rest.
STYLES: tuple[dict[str, Any], ...] = (
    {"facecolor": "#0072b2"},
    {"facecolor": "#e69f00", "hatch": "///"},
    {"facecolor": "#009e73", "hatch": "..."},
    {"facecolor": "#cc79a7", "hatch": "xxx"},
    {"facecolor": "#56b4e9", "hatch": "---"},
    {"facecolor": "#d55e00", "hatch": "\\\\\\"},
    {"facecolor": "#f0e442", "hatch": "++"},
    {"facecolor": "#999999"},
)
# Stands for a character that no installed font has.
_UNKNOWN = "\u25a1"
# The joiner and the selector that are left over where emoji cannot be drawn.
_PARTS_OF_EMOJI = "\u200d\ufe0f"


def new_axes(ax: Axes | None, *, width: float, height: float) -> Axes:
    """The given axes, or those of a new figure.

    Args:
        ax: Axes of the caller, or None.
        width: Width of a new figure in inches.
        height: Its height in inches.

    Raises:
        ImportError: When matplotlib is not installed; the message says how to install it.
    """
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'gradrerank[plot]'") from error
    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]


def diverging() -> Colormap:
    """Orange over white to blue; told to nobody else, so that no global list of colours changes."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("helps_hurts", ["#b35806", ORANGE, "#ffffff", "#67a9cf", BLUE])


def short(text: str, length: int) -> str:
    """A text of at most ``length`` characters.

    Example:
        >>> short("The ferry leaves.", 10)
        'The ferry…'
    """
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def outside(text: str, length: int) -> str:
    """A text from outside as one harmless line of at most ``length`` characters."""
    return short(one_line(text), length)


def first_drawable(texts: Iterable[str | None], length: int, default: str) -> str:
    """The first text that the installed fonts can draw, but for symbols and a few letters, on one line.

    Args:
        texts: Texts in order of preference; what cannot be drawn of the one that is chosen is left out.
        length: Most characters.
        default: What to draw where no font has most of the letters of any of them.
    """
    for text in texts:
        line = outside(text or "", length)
        lost = _lost(line)
        n_letters, n_lost = (sum(map(str.isalnum, part)) for part in (line, (c for c in line if c in lost)))
        if line and not lost:
            return line
        if n_lost <= n_letters - n_lost and n_letters:
            kept = (c for c in line if c not in lost and c not in _PARTS_OF_EMOJI)
            return " ".join("".join(kept).split())
    return default


def plain(text: Text) -> Text:
    """Let a text be drawn as it is written: dollar signs are no formula, and any script finds its font.

    Args:
        text: A text of matplotlib; it is changed.

    Returns:
        The same text.
    """
    text.set_parse_math(False)
    text.set_text(_drawable(text.get_text()))
    fonts = _fallbacks(text.get_text())
    if fonts:
        text.set_fontfamily([*text.get_fontfamily(), *fonts])
    return text


def label_ticks(
    axis: Axis, places: Sequence[float], labels: Sequence[str], *, size: float, rotation: float = 0
) -> None:
    """Put labels at places of an axis, without tick marks."""
    # A tick takes its text from here at every drawing, so it is made drawable here.
    axis.set_ticks(list(places), labels=[_drawable(label) for label in labels])
    axis.set_tick_params(length=0, labelsize=size)
    for tick in axis.get_ticklabels():
        plain(tick)
        if rotation:
            tick.set(rotation=rotation, ha="right", rotation_mode="anchor")


def _drawable(text: str) -> str:
    lost = _lost(text)
    return "".join(_UNKNOWN if c in lost else c for c in text)


def _lost(text: str) -> set[str]:
    """The characters that no installed font has."""
    missing = _missing(text)
    return missing - {c for font in _fallbacks(text) for c in missing if ord(c) in _characters(_paths()[font])}


def _fallbacks(text: str) -> list[str]:
    """Names of installed fonts that have what the default font lacks; as few as are needed."""
    missing, chosen = _missing(text), []
    for name in _paths() if missing else ():
        found = {c for c in missing if ord(c) in _characters(_paths()[name])}
        if found:
            chosen.append(name)
            missing -= found
        if not missing:
            break
    return chosen


def _missing(text: str) -> set[str]:
    from matplotlib.font_manager import FontProperties, findfont

    known = _characters(findfont(FontProperties()))
    return {c for c in text if ord(c) not in known and c != "\n"}


@functools.cache
def _paths() -> dict[str, str]:
    """Upright fonts by name, without those that draw a placeholder for everything or pictures."""
    from matplotlib.font_manager import fontManager

    upright = [f for f in fontManager.ttflist if f.style == "normal" and f.weight in (400, "normal", "regular")]
    usable = [f for f in upright if not f.name.startswith("Last Resort") and "Emoji" not in f.name]
    return {f.name: f.fname for f in sorted(usable, key=lambda f: f.name, reverse=True)}


@functools.cache
def _characters(path: str) -> frozenset[int]:
    from matplotlib.font_manager import get_font

    try:
        return frozenset(get_font(path).get_charmap())
    except (OSError, RuntimeError):  # the list of fonts is older than the fonts
        return frozenset()
