"""Constants that several test files share."""

#: exported before the shared Ray starts, so that its workers have it
KEY_ENV, KEY = "TEST_ENDPOINT_KEY", "sk-right-key-of-the-tests"
