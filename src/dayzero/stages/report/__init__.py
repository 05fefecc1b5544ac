"""report: everything that the stages found, as one HTML file that works offline, and as a summary for the terminal."""

from .headline import unproven
from .html import report
from .text import release_card, summary

__all__ = ["release_card", "report", "summary", "unproven"]
