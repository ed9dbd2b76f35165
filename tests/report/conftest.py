from tests.web.conftest import _calm, rows, seeded, signed_in  # noqa: F401 - the story's rows and browsers
