"""Ed25519 signatures of messages, so that a message can be passed on, and shown to others as a proof."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE_BYTES = 64

Sign = Callable[[bytes], bytes]
Verify = Callable[[int, bytes | memoryview, bytes], bool]


def _private_key(secret_key: str) -> Ed25519PrivateKey:
    """Return the key that signs, which follows from the key of the connections."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"jaxbyz signatures" + secret_key.encode()).digest())


def public_key(secret_key: str) -> str:
    """Return what others need to check signatures, in hexadecimal digits."""
    return _private_key(secret_key).public_key().public_bytes_raw().hex()


def signer(secret_key: str) -> Sign:
    """Return `bytes -> signature` for the owner of a secret key."""
    sign = _private_key(secret_key).sign
    return lambda data: sign(_digest(data))


def verifier(public_keys: Sequence[str]) -> Verify:
    """Return `(node, bytes, signature) -> whether the node has signed these bytes`."""
    checks = [Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify for key in public_keys]

    def verify(node: int, data: bytes | memoryview, signature: bytes) -> bool:
        try:
            checks[node](signature, _digest(data))
        except InvalidSignature:
            return False
        return True

    return verify


def _digest(data: bytes | memoryview) -> bytes:
    """Return what is signed: Ed25519 itself would read a message twice with a slower hash."""
    return hashlib.sha256(data).digest()
