"""Pages with charts, for the dashboard and for reports in files.

charts       what a chart draws, as numbers
templating   Jinja2 for pages, and how values look there: each one is escaped; `plot.html` is the frame of a chart
"""
