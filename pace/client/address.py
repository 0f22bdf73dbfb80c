"""The address of a service, checked alike by commands, the client and the runtime."""

from urllib.parse import urlsplit

from pace.errors import InvalidOptions


def refuse_other_address(named: str, given: object, *, key: str) -> None:
    """Raise InvalidOptions for what is no URL of a service; the message never shows a password.

    Parameters
    ----------
    named
        What the caller calls the address, for the message.
    key
        How the caller gives an API key, for the message.

    Raises
    ------
    InvalidOptions
        If it is no URL, or has a user name or a password, which would replace the API key.
    """
    if not isinstance(given, str):
        raise InvalidOptions(
            f"{named} is {given!r}, which is not a URL: use text such as 'http://127.0.0.1:8080'"
        )
    if "@" in given:
        raise InvalidOptions(
            f'{named} has an "@": leave the user name and the password out of the URL, and give an API key'
            f" with {key}"
        )
    try:
        parts = urlsplit(given)
        host, port = parts.hostname, parts.port  # the port is checked when it is read
    except ValueError as error:
        raise InvalidOptions(f"{named} is {given!r}, which is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        address = given.rpartition("://")[2].lstrip("/") or "127.0.0.1:8080"
        raise InvalidOptions(f"{named} is {given!r}, which is not a URL: use 'http://{address}'")
    if port == 0:
        raise InvalidOptions(f"{named} is {given!r}: no service has the port 0")
