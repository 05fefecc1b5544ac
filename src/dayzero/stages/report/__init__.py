"""report: everything that the stages found, as one HTML file that works offline, and as a summary for the terminal."""

from .comparison import comparison_page
from .headline import unproven
from .history import history_page
from .html import report
from .text import release_card, summary

__all__ = ["comparison_page", "history_page", "release_card", "report", "summary", "unproven"]
