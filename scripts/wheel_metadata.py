#!/usr/bin/env python3
"""Writes a wheel's dist-info: wheel_metadata.py MODULE DIST_INFO BINARY...

METADATA is of pyproject.toml, licenses/ has those of all that is linked in, and sboms/moesaic.spdx.json lists it with the
versions of this machine's packages (sbom.py).
"""

import json
import pathlib
import re
import shutil
import sys
import tomllib

import sbom

# Belongs to every system (PEP 600's manylinux policies).
OF_THE_SYSTEM = sbom.GLIBC + r"|lib(stdc\+\+|gcc_s|z)\.so"


def metadata():
    project = tomllib.loads((sbom.ROOT / "pyproject.toml").read_text())["project"]
    lines = [
        "Metadata-Version: 2.1",
        "Name: moesaic",
        f"Version: {sbom.project_version()}",
        f"Summary: {project['description']}",
        "License: Apache-2.0",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {requirement}" for requirement in project["dependencies"]),
    ]
    for extra, requirements in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {requirement}; extra == '{extra}'" for requirement in requirements]
    lines += ["Description-Content-Type: text/markdown", "", (sbom.ROOT / "README.md").read_text()]
    return "\n".join(lines)


def main(module, info, *binaries):
    info = pathlib.Path(info)
    tag = re.search(r"cpython-(\d+)", module)[1]
    (info / "WHEEL").write_text(
        f"Wheel-Version: 1.0\nGenerator: moesaic\nRoot-Is-Purelib: false\nTag: cp{tag}-cp{tag}-linux_x86_64\n"
    )
    (info / "METADATA").write_text(metadata())
    inside = {**sbom.linked_packages(binaries, OF_THE_SYSTEM), **sbom.compiled_packages(with_faiss=False)}
    fetched = sbom.fetched_sources(python_module=True)
    sbom.write_licences(info / "licenses", inside, fetched)
    shutil.copy(sbom.ROOT / "LICENSE", info / "licenses" / "LICENSE")
    sboms = info / "sboms"  # PEP 770
    sboms.mkdir(exist_ok=True)
    document = sbom.spdx(f"pkg:pypi/moesaic@{sbom.project_version()}", inside, {}, fetched, "scripts/wheel_metadata.py")
    (sboms / "moesaic.spdx.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
