"""The HTML report of a run: what ran, what every gate said, how good the labeler is, where it is wrong, what changed.

One file that needs nothing beside it. `markup` makes sure that no text can act, `page` is the frame, `recipe`,
`quality`, `mistakes` and `changed` are the sections, `subject`, `wrong_pairs` and `contradictions` find what stands in
them, `tables` asks the warehouse, `files` and `build` write.
"""

from semlabel.html_report.build import complete_report, write_report
from semlabel.html_report.files import LATEST, report_path

__all__ = ["LATEST", "complete_report", "report_path", "write_report"]
