"""Encrypts a message with AES in counter mode, in pure Python, and decrypts it again."""

import hashlib
import random
import string

import pyaes

KEY = bytes(range(16))


def message_of(length, seed):
    letters = string.ascii_lowercase + string.digits
    return "".join(random.Random(seed).choices(letters, k=length)).encode()


def handler(event, context):
    message = message_of(int(event.get("length", 500)), int(event.get("seed", 1)))
    iterations = int(event.get("iterations", 20))
    digest = hashlib.sha256()
    for _ in range(iterations):
        # The counter goes on from message to message.
        start = int.from_bytes(digest.digest()[:8], "big")
        encrypted = pyaes.AESModeOfOperationCTR(KEY, pyaes.Counter(start)).encrypt(message)
        decrypted = pyaes.AESModeOfOperationCTR(KEY, pyaes.Counter(start)).decrypt(encrypted)
        if decrypted != message:
            raise ValueError("decrypting does not give the message back")
        digest.update(encrypted)
    return {"length": len(message), "iterations": iterations, "digest": digest.hexdigest()}
