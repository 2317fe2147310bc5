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
    live                             parts of pages that move by themselves
    views                            values as pages show them
    rendering, assets                templates, and files of others; charts are in `mqdb.drawing`
"""
