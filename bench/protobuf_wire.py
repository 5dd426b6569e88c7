"""What is needed of protobuf's wire format to read CRIU's small records."""


def varint(message, at):
    """The number that begins at `at`, and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
