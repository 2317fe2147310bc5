"""The dashboard: pages for people, in `mqdb serve` or alone (`mqdb web`).

    request ──▶ Gate            who asks, from which page; read-only, viewers; headers that bind the browser
                 └─▶ endpoint   reads the form, checks its token, finds the broker, turns errors into pages
                      └─▶ pages/<subject>   asks `Permissions`, then `Admin`; renders a template

All that a page shows or does goes through `mqdb_client.Admin`, as on the command line. Only a web application that has
a dashboard imports this package and Jinja2.

    dashboard                        the application, put together
    gate, login, login_sessions         who it is
    endpoint, visit, fields          a request
    pages, permissions, brokers      what there is to see, who may do what, where
    pulse, live                      the live part of the overview, and its stream
    rendering, bodies, assets        how it looks; charts are in `mqdb.drawing`
"""
