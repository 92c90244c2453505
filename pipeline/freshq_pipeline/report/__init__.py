"""`report.html`: the page and its charts."""
