"""What makes a federation: the common configuration, one key pair per node, and the list of public keys and addresses.

`DIR/federation.json` is public and the same for all nodes. Every node has a folder of its own, with a copy of it, its
number in `node.json`, and its private key in `secret.key`, which nobody else may read. Only creating and reading keys
needs pyzmq, so that results can be read without it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from jaxbyz.configuration.config import Config
from jaxbyz.configuration.resolving import from_dict, to_dict
from jaxbyz.errors import UsageError
from jaxbyz.files import read_json, write_json

FEDERATION_FORMAT = 2
FEDERATION_FILE, NODE_FILE, SECRET_FILE = "federation.json", "node.json", "secret.key"
KEY_CHARACTERS = 40  # a CURVE key of 32 bytes in Z85
ID_BYTES = 16


class Member(msgspec.Struct, frozen=True):
    """One node as all others know it.

    Attributes:
        address: where it listens, `host:port`.
        public_key: the public key of its connections, in Z85.
        signing_key: the public key of its signatures, in hexadecimal digits.
    """

    address: str
    public_key: Annotated[str, msgspec.Meta(pattern=f"^[!-~]{{{KEY_CHARACTERS}}}$")]
    signing_key: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class FederationDescription(NamedTuple):
    """What all nodes have in common.

    Attributes:
        config: the configuration of the run.
        members: the nodes, in the order of their numbers.
        nonce: drawn at creation, so that frames of an earlier federation with the same keys mean nothing.
        private_randomness: whether every node mixes its private key into its random numbers.
    """

    config: Config
    members: tuple[Member, ...]
    nonce: str
    private_randomness: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the contents of federation.json."""
        return {
            "format": FEDERATION_FORMAT,
            "nonce": self.nonce,
            "private_randomness": self.private_randomness,
            "config": to_dict(self.config),
            "nodes": [msgspec.to_builtins(member) for member in self.members],
        }

    def identifier(self) -> bytes:
        """Return the 16 bytes that every frame carries: a digest of everything that the nodes must have in common."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).digest()[:ID_BYTES]


class FederationFile(msgspec.Struct):
    """The contents of federation.json besides its format."""

    nonce: str
    private_randomness: bool
    config: dict[str, Any]
    nodes: tuple[Member, ...]


class Identity(NamedTuple):
    """What only one node has.

    Attributes:
        node: its number.
        public_key: its public key in Z85.
        secret_key: its private key in Z85.
    """

    node: int
    public_key: str
    secret_key: str

    def private_seed(self) -> int:
        """Return 32 bits that only this node knows."""
        digest = hashlib.sha256(b"jaxbyz random numbers" + self.secret_key.encode()).digest()
        return int.from_bytes(digest[:4], "little")


def node_name(index: int) -> str:
    """Return the name of a node's folder."""
    return f"node-{index:02d}"


def refuse_federation(folder: Path) -> None:
    """Refuse a folder that holds a federation already, or is a file."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: is a file; a folder is needed")
    if (folder / FEDERATION_FILE).exists():
        raise UsageError(f"{folder}: holds a federation already; choose another folder or remove it")


def write_federation(
    folder: Path, config: Config, addresses: list[str], private_randomness: bool
) -> FederationDescription:
    """Draw one key pair per address and write the folders of a new federation."""
    import zmq

    from jaxbyz.federation.signatures import public_key

    refuse_federation(folder)
    pairs = [tuple(key.decode() for key in zmq.curve_keypair()) for _ in addresses]
    members = tuple(
        Member(address, public, public_key(secret)) for address, (public, secret) in zip(addresses, pairs, strict=True)
    )
    federation = FederationDescription(config, members, secrets.token_hex(16), private_randomness)
    for index, (_, secret) in enumerate(pairs):
        own = folder / node_name(index)
        try:
            own.mkdir(parents=True, exist_ok=False, mode=0o700)
            handle = os.open(own / SECRET_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise UsageError(f"{own}: cannot be created ({error.strerror})") from error
        with os.fdopen(handle, "w") as file:
            file.write(secret + "\n")
        write_json(own / NODE_FILE, {"node": index})
        write_json(own / FEDERATION_FILE, federation.to_dict())
    write_json(folder / FEDERATION_FILE, federation.to_dict())
    return federation


def read_federation(folder: Path, *, names: bool = True) -> FederationDescription:
    """Read federation.json; `names` is passed to `config.check`.

    Raises:
        UsageError: if it is missing, damaged or newer than this library.
    """
    path = folder / FEDERATION_FILE
    if not path.exists():
        raise UsageError(
            f"{folder}: no federation here ({FEDERATION_FILE} missing); `jaxbyz federation create` makes one"
        )
    values = read_json(path)
    if values.get("format") != FEDERATION_FORMAT:
        raise UsageError(f"{path}: format {values.get('format')!r}, this jaxbyz reads {FEDERATION_FORMAT}")
    try:
        stored = msgspec.convert(values, FederationFile)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: damaged ({error})") from error
    config, members = from_dict(stored.config, names=names), stored.nodes
    if len(members) != config.agents:
        raise UsageError(f"{path}: {len(members)} nodes for agents={config.agents}")
    if len({member.public_key for member in members}) != len(members):
        raise UsageError(f"{path}: two nodes have the same public key")
    return FederationDescription(config, members, stored.nonce, stored.private_randomness)


def read_identity(folder: Path, federation: FederationDescription) -> Identity:
    """Read the number and the private key of a node.

    Raises:
        UsageError: if the key is missing, can be read by other users, or is not the one of the list.
    """
    import zmq

    from jaxbyz.federation.signatures import public_key

    index = read_json(folder / NODE_FILE).get("node") if (folder / NODE_FILE).exists() else None
    if type(index) is not int or not 0 <= index < len(federation.members):
        raise UsageError(
            f"{folder}: not the folder of a node ({NODE_FILE} must name one of 0 to {len(federation.members) - 1})"
        )
    path = folder / SECRET_FILE
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise UsageError(f"{path}: the private key cannot be read ({error.strerror})") from error
    with os.fdopen(handle) as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise UsageError(f"{path}: other users can read the private key (mode {mode:04o}): chmod 600 {path}")
        try:
            secret = file.read(KEY_CHARACTERS + 2).strip()
            public = zmq.curve_public(secret.encode()).decode()
        except (ValueError, zmq.ZMQError) as error:
            raise UsageError(f"{path}: not a private key of {KEY_CHARACTERS} characters") from error
    member = federation.members[index]
    if (public, public_key(secret)) != (member.public_key, member.signing_key):
        raise UsageError(f"{path}: belongs to another public key than that of node {index} in {FEDERATION_FILE}")
    return Identity(index, public, secret)
