"""The site: its generated pages (`reference`), and what MkDocs calls to add them (`hooks`)."""
