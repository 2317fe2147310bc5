"""The site: its generated pages (`reference`), the hooks with which MkDocs adds them (`hooks`), and its pictures.

`screenshots` makes pictures of the dashboard of `example_shop`.
"""
