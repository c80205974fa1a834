"""Lays out every block of docs/kubernetes.md as a reader would: docs.py REPOSITORY FOLDER

Each kustomization gets a folder, beside the workload and the configuration that its text speaks of; the chart's values and templates become a
chart; commands become scripts, in the order of the page. What cannot be followed here is listed in SKIPPED, with the reason, and any block that
is neither followed nor listed is a failure.
"""

import pathlib
import re
import shutil
import sys

import yaml

REPOSITORY, FOLDER = map(pathlib.Path, sys.argv[1:])
PAGE = REPOSITORY / "docs/kubernetes.md"
# Public images, and what stands for them on the node.
IMAGES = """  - { name: docker.io/library/busybox, newName: localhost/busybox, newTag: "1" }
  - { name: docker.io/otel/opentelemetry-collector-contrib, newName: localhost/otelcol, newTag: "1" }
"""
# The image's name in the documentation, and on the node.
OURS = "{ name: spanscore, newName: registry.example.com/spanscore, newTag: 0.1.0 }"
HERE = "{ name: spanscore, newName: localhost/spanscore, newTag: test }"
AGENT = REPOSITORY / "tests/kubernetes/overlays/named/shop/agent.yaml"
CRITERIA = "assemble: { expired: 30m }\ncriteria: []\n"
SKIPPED = {
    "pod ┌": "a picture",
    "docker build": "image.sh packs the image; the build stage needs a registry",
    "routing_attributes": "router.sh tries it",
}


def blocks():
    """Language and text of each block, without the indentation of a list."""
    for match in re.finditer(r"^( *)```(\w*)\n(.*?)^ *```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        indent, language, text = match.groups()
        yield language, "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))


def kustomization(text):
    name = "try" if "overlays/print" in text else yaml.safe_load(text).get("namespace", "shop")
    folder = FOLDER / name
    folder.mkdir()
    assert text.count(OURS) == 1, text
    text = text.replace("path/to/deploy", "../deploy").replace(f"  - {OURS}\n", f"  - {HERE}\n{IMAGES}")
    text = text.replace("    " + OURS, "    " + HERE)
    (folder / "kustomization.yaml").write_text(text)
    if "agent.yaml" in text:
        shutil.copy(AGENT, folder / "agent.yaml")
    if "files: [spanscore.yaml]" in text:
        (folder / "spanscore.yaml").write_text(CRITERIA)
    return name


def chart(values, template):
    """A chart of the reader's own, which takes the sidecar from ours."""
    folder = FOLDER / "chart"
    (folder / "templates").mkdir(parents=True)
    (folder / "charts").mkdir()
    shutil.copytree(REPOSITORY / "deploy/helm/spanscore", folder / "charts/spanscore")
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: shop\nversion: 0.1.0\n")
    values = values.replace("registry.example.com/spanscore }", "localhost/spanscore, tag: test, pullPolicy: Never }")
    (folder / "values.yaml").write_text(values)
    document = yaml.safe_load(AGENT.read_text())
    pod = document["spec"]["template"]["spec"]
    rest = yaml.safe_dump({key: pod[key] for key in ("securityContext", "containers")}, sort_keys=False)
    labels, spec = template.split("spec:\n")
    labels = labels.replace("  labels:\n", "  labels:\n    app: shop\n")
    text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: { name: shop }\nspec:\n  selector: { matchLabels: { app: shop } }\n  template:\n"
    # The includes bring their own indentation.
    shift = lambda lines, n: "".join(" " * n + line for line in lines.splitlines(keepends=True))
    text += shift(labels.split("\n", 1)[1], 4) + "    spec:\n" + shift(spec, 4)
    text += shift(rest, 6)
    (folder / "templates/deployment.yaml").write_text(text)


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    (FOLDER / "deploy").symlink_to(REPOSITORY / "deploy")
    followed, skipped, values, n_scripts = [], [], None, 0
    for language, text in blocks():
        reason = next((reason for part, reason in SKIPPED.items() if part in text), None)
        if reason:
            skipped.append(reason)
            assert language != "yaml" or list(yaml.safe_load_all(text))
        elif "kind: Kustomization" in text:
            followed.append(kustomization(text))
        elif text.startswith("# values.yaml of your chart"):
            values = text
        elif text.startswith("# the pod template of your chart"):
            chart(values, text)
            followed.append("chart")
        elif text.startswith("kubectl "):
            n_scripts += 1
            (FOLDER / f"commands-{n_scripts}.sh").write_text(text)
            followed.append(f"commands {n_scripts}")
        else:
            sys.exit(f"a block that nobody follows:\n{text}")
    print(f"{len(followed)} blocks to follow ({', '.join(followed)}), {len(skipped)} not: {'; '.join(skipped)}")


main()
