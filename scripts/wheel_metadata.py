#!/usr/bin/env python3
"""Writes a wheel's dist-info: wheel_metadata.py VERSION MODULE DIST_INFO BINARY...

METADATA is of pyproject.toml, licenses/ has those of all that is linked in, and sbom.spdx.json lists it with the versions
of this machine's packages (SPDX 2.3).
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Belongs to every system (PEP 600's manylinux policies).
OF_THE_SYSTEM = re.compile(r"^(linux-vdso|ld-linux|lib(c|m|mvec|dl|pthread|rt|resolv|stdc\+\+|gcc_s|z)\.so)")


def output(*arguments):
    return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout


def linked_packages(binaries):
    """Debian packages of the libraries that go into the wheel: name -> version."""
    packages = {}
    for binary in binaries:
        for soname, path in re.findall(r"^\s*(\S+) => (\S+)", output("ldd", binary), re.MULTILINE):
            if OF_THE_SYSTEM.match(soname):
                continue
            owner = output("dpkg-query", "-S", str(pathlib.Path(path).resolve())).split(":")[0]
            packages[owner] = output("dpkg-query", "-W", "-f", "${Version}", owner)
    # Headers only: compiled in.
    for name in ("libboost-dev", "libsimdjson-dev", "nlohmann-json3-dev", "libmsgpack-cxx-dev", "libspdlog-dev"):
        try:
            packages[name] = output("dpkg-query", "-W", "-f", "${Version}", name)
        except subprocess.CalledProcessError:
            pass
    return packages


def fetched_sources():
    """What is compiled from build/third_party: name -> (version, SPDX licence, files of licences)."""
    fetched = {}
    third_party = ROOT / "build" / "third_party"
    for source in sorted(third_party.glob("nanobind-*")):
        licences = sorted(source.glob("nanobind-*.dist-info/**/LICENSE"))
        fetched["nanobind"] = (source.name.split("-", 1)[1], "BSD-3-Clause", {"nanobind": licences[0].read_text()})
    for source in sorted(third_party.glob("xgrammar-*")):
        head = (source / "3rdparty/picojson/picojson.h").read_text().split("*/", 1)[0] + "*/\n"
        fetched["xgrammar"] = (
            source.name.split("-", 1)[1],
            "Apache-2.0 AND BSD-2-Clause",
            {
                "xgrammar": (source / "LICENSE").read_text(),
                "dlpack": (source / "3rdparty/dlpack/LICENSE").read_text(),
                "picojson": head,
            },
        )
    return fetched


def metadata(version):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [
        "Metadata-Version: 2.1",
        "Name: moesaic",
        f"Version: {version}",
        f"Summary: {project['description']}",
        "License: Apache-2.0",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {requirement}" for requirement in project["dependencies"]),
    ]
    for extra, requirements in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {requirement}; extra == '{extra}'" for requirement in requirements]
    lines += ["Description-Content-Type: text/markdown", "", (ROOT / "README.md").read_text()]
    return "\n".join(lines)


def spdx(version, packages, fetched):
    def package(name, its_version, licence, locator):
        return {
            "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name),
            "name": name,
            "versionInfo": its_version,
            "downloadLocation": "NOASSERTION",
            "licenseConcluded": licence,
            "licenseDeclared": licence,
            "copyrightText": "NOASSERTION",
            "externalRefs": [
                {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}
            ],
        }

    own = package("moesaic", version, "Apache-2.0", f"pkg:pypi/moesaic@{version}")
    parts = [package(name, its, "NOASSERTION", f"pkg:deb/debian/{name}@{its}") for name, its in sorted(packages.items())]
    parts += [package(name, its, licence, f"pkg:pypi/{name}@{its}") for name, (its, licence, _) in sorted(fetched.items())]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"moesaic-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/moesaic-{version}-{output('git', '-C', str(ROOT), 'rev-parse', 'HEAD').strip()}",
        "creationInfo": {
            "created": output("git", "-C", str(ROOT), "log", "-1", "--format=%cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ").strip(),
            "creators": ["Tool: scripts/wheel_metadata.py"],
        },
        "packages": [own, *parts],
        "relationships": [
            {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": own["SPDXID"]},
            *(
                {"spdxElementId": own["SPDXID"], "relationshipType": "CONTAINS", "relatedSpdxElement": part["SPDXID"]}
                for part in parts
            ),
        ],
    }


def main(version, module, info, *binaries):
    info = pathlib.Path(info)
    tag = re.search(r"cpython-(\d+)", module)[1]
    (info / "WHEEL").write_text(
        f"Wheel-Version: 1.0\nGenerator: moesaic\nRoot-Is-Purelib: false\nTag: cp{tag}-cp{tag}-linux_x86_64\n"
    )
    (info / "METADATA").write_text(metadata(version))
    packages, fetched = linked_packages(binaries), fetched_sources()
    licenses = info / "licenses"
    licenses.mkdir(exist_ok=True)
    shutil.copy(ROOT / "LICENSE", licenses / "LICENSE")
    for name in packages:
        shutil.copy(f"/usr/share/doc/{name}/copyright", licenses / name)
    for _, _, texts in fetched.values():
        for name, text in texts.items():
            (licenses / name).write_text(text)
    sboms = info / "sboms"  # PEP 770
    sboms.mkdir(exist_ok=True)
    (sboms / "moesaic.spdx.json").write_text(json.dumps(spdx(version, packages, fetched), indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
