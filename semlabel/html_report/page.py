"""The page around the sections: one file that asks nobody for anything and reads well on a phone.

Knows the head, the style and the policy that forbids scripts and every address; knows nothing of the sections.
"""

from semlabel.html_report.files import RUN_MARK
from semlabel.html_report.markup import Html, joined, tag

# What is forbidden stays forbidden, whatever a text manages to be.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = Html(
    """
:root { color-scheme: light dark; --line: #8886; --pass: #1a7f37; --fail: #c02020; --wait: #9a6700; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 0.8rem; max-width: 60rem; font: 16px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0.4rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.4rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.2rem 0 0.3rem; }
p, bdi { overflow-wrap: anywhere; }
img { display: block; max-width: 100%; height: auto; background: #fff; margin: 0.5rem 0; }
/* A shadow at the edge where a table goes on; it leaves when the end is reached. */
.scroll { overflow-x: auto; background:
  linear-gradient(to right, Canvas 1rem, transparent) -2px 0 / 2rem 100% no-repeat local,
  linear-gradient(to left, Canvas 1rem, transparent) calc(100% + 2px) 0 / 2rem 100% no-repeat local,
  linear-gradient(to right, #8889, transparent) 1px 0 / 0.7rem 100% no-repeat scroll,
  linear-gradient(to left, #8889, transparent) calc(100% - 1px) 0 / 0.7rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { text-align: left; vertical-align: top; padding: 0.25rem 0.6rem 0.25rem 0; }
tr { border-bottom: 1px solid var(--line); }
td { max-width: 20rem; }
td:has(bdi) { min-width: 6rem; }
.gate { border-left: 4px solid var(--line); padding: 0.2rem 0 0.2rem 0.7rem; margin: 0.6rem 0; }
.gate p { margin: 0.15rem 0; }
.pass { border-color: var(--pass); } .fail { border-color: var(--fail); } .wait { border-color: var(--wait); }
.verdict { font-weight: 600; }
.pass .verdict { color: var(--pass); } .fail .verdict { color: var(--fail); } .wait .verdict { color: var(--wait); }
.small { font-size: 0.85rem; opacity: 0.8; }
@media (prefers-color-scheme: dark) { :root { --pass: #3fb950; --fail: #ff7b72; --wait: #d29922; } }
@media (max-width: 30rem) {
  table { font-size: 0.8rem; }
  th, td { padding-right: 0.4rem; }
  td:has(bdi) { min-width: 5.2rem; }
}
"""
)


def page(title: str, run_id: str, *sections: Html) -> Html:
    """The whole document."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name=RUN_MARK, content=run_id),
        tag("title", title),
        tag("style", _STYLE),
    )
    body = tag("body", tag("h1", title), tag("main", *sections))
    return joined([Html("<!doctype html>\n"), tag("html", head, body, lang="en"), Html("\n")])
