#!/usr/bin/env python3
"""What a package of ours has inside: licences, and a list of parts in SPDX 2.3.

    sbom.py DIRECTORY contains|depends PROGRAM

DIRECTORY gets moesaic.spdx.json and licenses/. The libraries that PROGRAM links are parts of the package (contains), or
packages that it depends on (depends). The versions are those of this machine's packages. A wheel's metadata are
written by wheel_metadata.py with the functions of this file.
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
GLIBC = r"linux-vdso|ld-linux|lib(c|m|mvec|dl|pthread|rt|resolv)\.so"
# Header-only, or only there as an archive: compiled in. FAISS only where the program says so.
COMPILED_IN = {
    "libboost-dev": "/usr/include/boost/version.hpp",
    "nlohmann-json3-dev": "/usr/include/nlohmann/json.hpp",
    "libmsgpack-cxx-dev": "/usr/include/msgpack.hpp",
    "libspdlog-dev": "/usr/include/spdlog/spdlog.h",
    "libfaiss-dev": "/usr/include/faiss/Clustering.h",
}


def project_version():
    """The version, which stands in CMakeLists.txt alone."""
    return re.search(r"^project\(moesaic VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]


def output(*arguments):
    return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout


def package_of(path):
    """The Debian package that a file is of, and its version."""
    file = str(pathlib.Path(path).resolve())
    # dpkg knows the files of /lib by that name, though it is a link to /usr/lib.
    found = subprocess.run(["dpkg-query", "-S", file, file.removeprefix("/usr")], capture_output=True, text=True)
    if not found.stdout:
        raise SystemExit(f"sbom: {file} is of no Debian package, so that its version and licence are not known")
    name = found.stdout.split(":")[0]
    return name, output("dpkg-query", "-W", "-f", "${Version}\n", name).split()[0]


def linked_packages(binaries, of_the_system=GLIBC):
    """Debian packages of the shared libraries of programs: name -> version."""
    packages = {}
    for binary in binaries:
        for soname, path in re.findall(r"^\s*(\S+) => (/\S+)", output("ldd", binary), re.MULTILINE):
            if not re.match(of_the_system, soname):
                name, version = package_of(path)
                packages[name] = version
    return packages


def compiled_packages(with_faiss):
    """Debian packages that are compiled in: name -> version."""
    packages = {}
    for name, header in COMPILED_IN.items():
        if (name != "libfaiss-dev" or with_faiss) and pathlib.Path(header).exists():
            owner, version = package_of(header)
            packages[owner] = version
    return packages


def fetched_sources(python_module):
    """What is compiled from build/third_party: name -> (version, SPDX licence, licences by their name)."""
    fetched = {}
    third_party = ROOT / "build" / "third_party"
    for source in sorted(third_party.glob("nanobind-*")) if python_module else []:
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


def write_licences(directory, packages, fetched):
    """Licences of what is inside, a file each."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in packages:
        (directory / name).write_bytes(pathlib.Path(f"/usr/share/doc/{name}/copyright").read_bytes())
    for _, _, texts in fetched.values():
        for name, text in texts.items():
            (directory / name).write_text(text)


def spdx(locator, inside, depended, fetched, tool):
    """The document: the package `locator` (a purl) with what it contains and what it depends on."""

    def package(name, version, licence, its_locator):
        return {
            "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name),
            "name": name,
            "versionInfo": version,
            "downloadLocation": "NOASSERTION",
            "licenseConcluded": licence,
            "licenseDeclared": licence,
            "copyrightText": "NOASSERTION",
            "externalRefs": [
                {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": its_locator}
            ],
        }

    def debian(packages):
        return [
            package(name, its, "NOASSERTION", f"pkg:deb/debian/{name}@{its}") for name, its in sorted(packages.items())
        ]

    version = project_version()
    own = package("moesaic", version, "Apache-2.0", locator)
    contained = debian(inside)
    contained += [
        package(name, its, licence, f"pkg:pypi/{name}@{its}") for name, (its, licence, _) in sorted(fetched.items())
    ]
    needed = debian({name: its for name, its in depended.items() if name not in inside})
    commit, created = output(
        "git", "-C", str(ROOT), "log", "-1", "--format=%H %cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ"
    ).split()
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"moesaic-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/moesaic-{version}-{commit}",
        "creationInfo": {"created": created, "creators": [f"Tool: {tool}"]},
        "packages": [own, *contained, *needed],
        "relationships": [
            {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": own["SPDXID"]},
            *(
                {"spdxElementId": own["SPDXID"], "relationshipType": kind, "relatedSpdxElement": part["SPDXID"]}
                for kind, parts in (("CONTAINS", contained), ("DEPENDS_ON", needed))
                for part in parts
            ),
        ],
    }


def main(directory, how, program):
    directory = pathlib.Path(directory)
    inside = compiled_packages("FAISS" in output(program, "version"))
    depended = linked_packages([program], "linux-vdso" if how == "depends" else GLIBC)
    if how == "contains":
        inside, depended = {**depended, **inside}, {}
    fetched = fetched_sources(python_module=False)
    write_licences(directory / "licenses", inside, fetched)
    kind = "deb/debian" if how == "depends" else "generic"
    document = spdx(f"pkg:{kind}/moesaic@{project_version()}", inside, depended, fetched, "scripts/sbom.py")
    (directory / "moesaic.spdx.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[2] not in ("contains", "depends"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
