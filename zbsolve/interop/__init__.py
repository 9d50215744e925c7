"""Other tools' formats, one module a tool."""
