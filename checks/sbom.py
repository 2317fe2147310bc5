"""The bill of materials (SBOM) of a release, in CycloneDX: the packages that it needs, and the third-party files in it.

The packages are those of requirements.lock, with which mqdb is tested and its image is built. The same commit gives the
same text on every machine. The text names packages by their purl, without any address or path of the machine.
"""

import re
import tomllib
import uuid
from datetime import datetime
from pathlib import Path
from typing import Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from mqdb.dashboard.assets import VENDORED, Vendored

LOCK: Final = "requirements.lock"
#: The extras whose packages are in the lock, the same as in do.py.
LOCKED_EXTRAS: Final = ("server", "embedded")

#: For serial numbers, which must be UUIDs.
_NAMESPACE: Final = uuid.UUID("5f1c3ad3-5c39-4d1c-9f0a-6d71646200c1")
_PIN: Final = re.compile(r"^([a-z0-9-]+)==([^ ;\\]+)", re.MULTILINE)


def bill_of_materials(root: Path, version: str, made_at: datetime, wheel_sha256: str) -> str:
    """The SBOM of a version as JSON, made from the lock file and pyproject.toml in `root`."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = dict(_PIN.findall((root / LOCK).read_text(encoding="utf-8")))
    required = direct(project["dependencies"])
    extra = {name for each in LOCKED_EXTRAS for name in direct(project["optional-dependencies"][each])}
    mqdb = _mqdb(project, version, wheel_sha256)
    packages = {name: _package(name, pin, optional=name in extra - required) for name, pin in pins.items()}
    bundled = [_bundled(each) for each in VENDORED]

    bom = Bom(serial_number=uuid.uuid5(_NAMESPACE, f"{version} {wheel_sha256}"), components=packages.values())
    bom.metadata.timestamp = made_at
    bom.metadata.component = mqdb
    bom.components.update(bundled)
    bom.register_dependency(mqdb, [*(packages[name] for name in sorted(required | extra)), *bundled])
    return str(JsonV1Dot6(bom).output_as_string(indent=2)) + "\n"


def direct(requirements: list[str]) -> set[str]:
    """The normalized names of the packages in requirements."""
    return {re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", each, maxsplit=1)[0]).lower() for each in requirements}


def _mqdb(project: dict[str, str], version: str, wheel_sha256: str) -> Component:
    return Component(
        name="mqdb",
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=f"mqdb@{version}",
        description=project["description"],
        licenses=[LicenseFactory().make_from_string(project["license"])],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=wheel_sha256)],
    )


def _package(name: str, version: str, *, optional: bool) -> Component:
    purl = PackageURL("pypi", name=name, version=version)
    scope = ComponentScope.OPTIONAL if optional else None
    return Component(
        name=name, version=version, type=ComponentType.LIBRARY, purl=purl, bom_ref=purl.to_string(), scope=scope
    )


def _bundled(asset: Vendored) -> Component:
    """A third-party file that is in the wheel, unchanged."""
    package, _, rest = asset.source.rpartition("@")
    namespace, _, name = package.rpartition("/")
    purl = PackageURL("npm", namespace=namespace or None, name=name, version=rest.partition("/")[0])
    return Component(
        name=package,
        version=asset.version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=purl.to_string(),
        licenses=[LicenseFactory().make_from_string(asset.licence)],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=asset.sha256)],
    )
