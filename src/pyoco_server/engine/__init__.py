"""pyoco behind our types. Nothing outside this package imports pyoco."""
