"""The dashboard: pages for people, in `mqdb serve` or alone (`mqdb web`).

    request ──▶ Gate            the person and the origin; read-only, viewers; headers that restrict the browser
                 └─▶ endpoint   reads the form, checks its token, finds the broker, turns errors into pages
                      └─▶ pages/<subject>   checks `Permissions`, calls `Admin`, and renders a template

Pages read and change everything through `mqdb_client.Admin`, as the command line does. Only a web application with a
dashboard imports this package and Jinja2.

    dashboard                        the application, put together
    gate, login, login_sessions      logging in
    endpoint, visit, fields          a request
    pages, permissions, brokers      the pages, the rights of people, and the brokers
    live                             parts of pages that are updated continually
    views                            values as pages show them
    rendering, assets                templates and third-party files; charts are in `mqdb.drawing`
"""
