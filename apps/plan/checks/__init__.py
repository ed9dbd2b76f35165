"""The checks of the preflight, one file a subject. Each gives Problems, the good ones too: what was checked and is
fine is shown."""
