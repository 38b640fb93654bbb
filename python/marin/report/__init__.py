"""Reports: one self-contained HTML page with tables and plots, drawn from manifests and metrics.

Every text that comes from a document or a name is escaped; pages hold no script and load nothing.
"""

from marin.report.metrics import read_metrics
from marin.report.page import Page
from marin.report.training import add_training, write_run_report

__all__ = ["Page", "add_training", "read_metrics", "write_run_report"]
