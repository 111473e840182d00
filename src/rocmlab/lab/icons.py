"""The launcher's icons of our kernels: a framework's initials, and what the kernel computes on."""

from __future__ import annotations

from html import escape

FILE = "logo-svg.svg"
INITIALS = {"tensorflow": "TF", "torch": "PT"}
COLORS = {"tensorflow": "#b45309", "torch": "#9f1239"}
OTHER = "#0f766e"  # an environment of the user's own
BADGES = {True: "#15803d", False: "#475569"}  # a GPU, the CPU
SHAPE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64" width="64" height="64">
 <rect x="2" y="2" width="60" height="60" rx="10" fill="{color}"/>
 <text x="32" y="33" font-family="sans-serif" font-size="28" font-weight="bold" fill="#ffffff" text-anchor="middle">\
{initials}</text>{badge}
</svg>
"""
BADGE = """
 <rect x="6" y="41" width="52" height="17" rx="5" fill="{color}" stroke="#ffffff"/>
 <text x="32" y="54" font-family="sans-serif" font-size="12" font-weight="bold" fill="#ffffff" text-anchor="middle">\
{label}</text>"""


def svg(framework: str, label: str = "") -> str:
    """Return an icon of a kernel, 64 by 64 pixels, with a badge such as `CPU` where the lab has a choice."""
    badge = BADGE.format(color=BADGES["GPU" in label], label=escape(label)) if label else ""
    initials = INITIALS.get(framework, escape(framework[:2].upper()))
    return SHAPE.format(color=COLORS.get(framework, OTHER), initials=initials, badge=badge)
