"""Lists the versions of a published documentation: versions.json for the menu, index.html to the newest.

The menu is that of Material for MkDocs, which reads the list in the form that the tool mike writes.
"""

import json
import sys
from pathlib import Path

from packaging.version import Version

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>PACE</title>
<meta http-equiv="refresh" content="0; url={version}/index.html">
</head>
<body><a href="{version}/index.html">Documentation of PACE {version}</a></body>
</html>
"""


def write_versions(folder: Path) -> list[str]:
    """List the folder's versions, the newest first, and lead its own page to the newest."""
    versions = sorted((page.parent.name for page in folder.glob("*/index.html")), key=Version, reverse=True)
    entries = [{"version": version, "title": version, "aliases": []} for version in versions]
    (folder / "versions.json").write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    (folder / "index.html").write_text(PAGE.format(version=versions[0]), encoding="utf-8")
    return versions


if __name__ == "__main__":
    print("docs: versions " + ", ".join(write_versions(Path(sys.argv[1]))))
