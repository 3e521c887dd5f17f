"""Errors that a user can cause: one message that says what was asked, what is true and the way out."""


class UserError(ValueError):
    """A mistake of the user's. The command line prints its message alone and exits with code 2."""
