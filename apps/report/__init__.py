"""The state report: what runs where, on which versions, what is known to be wrong, who decided what and where every file is.
`gathering` reads the database, all else is pure: `shaping` makes the report, `markdown` writes it."""
