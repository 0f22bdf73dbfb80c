"""Other tools' files, one or several at once, become profiles."""
