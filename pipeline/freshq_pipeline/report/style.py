"""The look of the page: light and dark, for wide and narrow screens, and for print."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2329; --paper: #fff; --muted: #56616b; --line: #d9dee3;
  --wrong: #fdeceb }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ec; --paper: #15191d; --muted: #a3adb6; --line: #38414a; --wrong: #46201d }
}
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1020px; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere }
h1 { margin: 0; font-size: 1.5rem } h2 { margin: 2.2rem 0 .3rem; font-size: 1.15rem }
h3 { margin: .9rem 0 .2rem; font-size: 1rem } p { margin: .3rem 0 } .muted { color: var(--muted) }
.headline { font-size: 1.15rem; margin: .8rem 0 } .headline b { font-size: 1.6rem }
.headline div { margin: .3rem 0 }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .6rem;
  margin: 1.2rem 0 .4rem }
.figures div { border: 1px solid var(--line); border-radius: 6px; padding: .45rem .7rem }
.figures b { display: block; white-space: nowrap; font-size: 1.3rem; font-variant-numeric: tabular-nums }
.wrong { background: var(--wrong); padding: .45rem .7rem; border-radius: 6px }
.scroll { overflow-x: auto; background:
    linear-gradient(to right, var(--paper) 40%, transparent) left / 32px 100% no-repeat local,
    linear-gradient(to left, var(--paper) 40%, transparent) right / 32px 100% no-repeat local,
    linear-gradient(to right, var(--line), transparent) left / 14px 100% no-repeat scroll,
    linear-gradient(to left, var(--line), transparent) right / 14px 100% no-repeat scroll }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
.text { text-align: left }
.tall { max-height: 36rem; overflow-y: auto }
.tall th { position: sticky; top: 0; background: var(--paper) }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; min-width: 7rem }
.row { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 290px), 1fr)); gap: 1rem }
.chart { width: 100%; min-width: 0 } section { break-inside: avoid }
@media (max-width: 600px) { body { margin: 1rem auto } th, td { padding: .2rem .5rem } }
@media print {
  :root { color-scheme: light; --ink: #000; --paper: #fff; --muted: #444; --line: #ccc; --wrong: #fdeceb }
  body { margin: 0; max-width: none; font-size: 11px }
  .tall { max-height: none }
}
"""
