"""Pages with charts, for the dashboard and for reports in files.

charts       the numbers that a chart draws
templating   Jinja2 for pages, and the format of values, which are all escaped; `plot.html` is the frame of a chart
"""
