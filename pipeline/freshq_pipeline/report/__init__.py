"""The report: `report.html` with its charts, and the results on the terminal."""
