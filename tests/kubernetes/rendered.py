"""Looks at rendered manifests: rendered.py SPANSCORE REPOSITORY FOLDER

Every spanscore.yaml in a ConfigMap is checked by `spanscore validate`, together with the variables of its container; every spanscore
container is one that the restricted profile takes, has its probes and its preStop, and mounts its configuration as a folder; where
several files must say the same they do.
"""

import pathlib
import re
import subprocess
import sys

import yaml

SPANSCORE, REPOSITORY, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
# A program without Kafka refuses to read or write a topic; it checks everything else.
BUILT_WITHOUT = "this program is built without Kafka"
# journal.max_scores_size, unless given.
MAX_SCORES_SIZE = 128 << 20
wrong, n_configurations, n_containers, n_in_part, journals = [], 0, 0, 0, []


def load(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def pod_of(document):
    spec = document.get("spec") or {}
    if document["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    if document["kind"] == "Pod":
        return document
    return spec.get("template")


def n_bytes(quantity):
    number, unit = re.fullmatch(r"(\d+)([KMG]i)B?", quantity).groups()
    return int(number) << {"Ki": 10, "Mi": 20, "Gi": 30}[unit]


def validate(text, environment, what):
    global n_configurations, n_in_part
    n_configurations += 1
    file = FOLDER / "spanscore.yaml.tmp"
    file.write_text(text)
    answer = subprocess.run([SPANSCORE, "validate", file], env=environment, capture_output=True, text=True)
    if answer.returncode != 0 and BUILT_WITHOUT in answer.stdout + answer.stderr:
        n_in_part += 1
        environment = environment | {"SPANSCORE_KAFKA__READ__ENABLED": "false", "SPANSCORE_KAFKA__WRITE__ENABLED": "false"}
        answer = subprocess.run([SPANSCORE, "validate", file], env=environment, capture_output=True, text=True)
    file.unlink()
    if answer.returncode != 0:
        wrong.append(f"{what}: {answer.stdout}{answer.stderr}")


def look_at(container, pod, is_sidecar, what, configurations, variables, claims):
    global n_containers
    n_containers += 1
    environment = {pair["name"]: pair["value"] for pair in container.get("env", [])}
    for source in container.get("envFrom", []):
        environment.update(variables.get(source["configMapRef"]["name"], {}))
    is_judge = "SPANSCORE_KAFKA__READ__ENABLED" in environment
    security, spec = container["securityContext"], pod["spec"]
    profile = security.get("seccompProfile") or spec["securityContext"]["seccompProfile"]
    holds = {
        "runs as nobody": (security.get("runAsNonRoot") or spec["securityContext"]["runAsNonRoot"]) is True,
        "cannot gain privileges": security["allowPrivilegeEscalation"] is False,
        "has a read-only root": security["readOnlyRootFilesystem"] is True,
        "drops every capability": security["capabilities"]["drop"] == ["ALL"],
        "has the runtime's seccomp profile": profile["type"] == "RuntimeDefault",
        "says in its status why it ended": container.get("terminationMessagePolicy") == "FallbackToLogsOnError",
        "has a memory limit": bool(container["resources"]["limits"]["memory"]),
        "has no cpu limit": "cpu" not in container["resources"]["limits"],
        "mounts no subPath": all("subPath" not in mount for mount in container["volumeMounts"]),
        "sees no token": spec.get("automountServiceAccountToken") is False
        or any(mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount" for mount in container["volumeMounts"]),
    }
    if container["args"][0] == "run":
        if is_judge:
            holds["hands its traces over as they are"] = "lifecycle" not in container
            holds["takes no OTLP"] = [port["containerPort"] for port in container["ports"]] == [13133]
            # Brokers that are away are no reason to restart it.
            holds["starts without brokers"] = container["startupProbe"]["httpGet"]["path"] == "/livez"
        else:
            holds["is told to drain"] = container["lifecycle"]["preStop"]["exec"]["command"] == ["/spanscore", "drain"]
        holds["has three probes"] = all(container[f"{kind}Probe"]["httpGet"]["port"] == "spanscore-admin" for kind in ("startup", "readiness", "liveness"))
    if is_sidecar:
        holds["is a native sidecar"] = container.get("restartPolicy") == "Always"
    wrong.extend(f"{what}: does not hold: {name}" for name, held in holds.items() if not held)

    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    if "SPANSCORE_JOURNAL__DIRECTORY" in environment:
        journals.append(what)
        folder = pathlib.PurePosixPath(environment["SPANSCORE_JOURNAL__DIRECTORY"])
        mounts = [mount["name"] for mount in container["volumeMounts"] if pathlib.PurePosixPath(mount["mountPath"]) in folder.parents]
        if len(mounts) != 1 or mounts[0] not in volumes | claims:
            wrong.append(f"{what}: its journal is on no volume")
        else:
            room = volumes[mounts[0]]["emptyDir"].get("sizeLimit") if mounts[0] in volumes else claims[mounts[0]]
            if not room:
                wrong.append(f"{what}: its journal has no limit")
            elif n_bytes(room) < n_bytes(environment["SPANSCORE_JOURNAL__MAX_SIZE"]) + MAX_SCORES_SIZE:
                wrong.append(f"{what}: a volume of {room} does not hold its journal's logs")
    mounted = [volumes[mount["name"]] for mount in container["volumeMounts"] if mount["mountPath"] == "/etc/spanscore"]
    if len(mounted) != 1:
        wrong.append(f"{what}: /etc/spanscore is mounted {len(mounted)} times")
        return
    name = mounted[0]["configMap"]["name"]
    if what.startswith("kustomize-named.yaml") and name not in configurations:
        wrong.append(f"{what}: mounts ConfigMap {name}, which is not its own; there are {sorted(configurations)}")
    validate(configurations.get(name, ""), environment, f"{what}, ConfigMap {name}")


for path in sorted(FOLDER.glob("*.yaml")):
    documents = load(path)
    maps = {document["metadata"]["name"]: document.get("data", {}) for document in documents if document["kind"] == "ConfigMap"}
    configurations = {name: data["spanscore.yaml"] for name, data in maps.items() if "spanscore.yaml" in data}
    for document in documents:
        what = f"{path.name}, {document['kind']} {document['metadata']['name']}"
        pod = pod_of(document)
        if not pod:
            continue
        claims = {
            claim["metadata"]["name"]: claim["spec"]["resources"]["requests"]["storage"]
            for claim in document["spec"].get("volumeClaimTemplates", [])
        }
        labels = (document["metadata"].get("labels") or {}) | (pod["metadata"].get("labels") or {})
        containers = [(container, True) for container in pod["spec"].get("initContainers", [])] + [(container, False) for container in pod["spec"]["containers"]]
        ours = [(container, is_init) for container, is_init in containers if container["name"] == "spanscore"]
        if labels.get("spanscore/sidecar") == "on" and len(ours) != 1 or labels.get("spanscore/sidecar") == "off" and any(is_init for _, is_init in ours):
            wrong.append(f"{what}: has {len(ours)} sidecars")
        for container, is_init in ours:
            look_at(container, pod, is_init, what, configurations, maps, claims)

for path in sorted(FOLDER.glob("*.yaml")):
    for document in load(path):
        if document["kind"] == "ServiceMonitor" and not all(endpoint.get("honorLabels") for endpoint in document["spec"]["endpoints"]):
            wrong.append(f"{path.name}: {document['metadata']['name']} hides the agent's label `service` behind the Service's")

sidecar, in_cron_job = (load(REPOSITORY / f"deploy/kustomize/components/sidecar/{name}.yaml")[0] for name in ("sidecar", "sidecar-cronjob"))
if sidecar["spec"] != in_cron_job["spec"]["jobTemplate"]["spec"]:
    wrong.append("sidecar.yaml and sidecar-cronjob.yaml differ")
journal, in_cron_job = (load(REPOSITORY / f"deploy/kustomize/components/journal/{name}.yaml")[0] for name in ("journal", "journal-cronjob"))
if journal["spec"] != in_cron_job["spec"]["jobTemplate"]["spec"]:
    wrong.append("journal.yaml and journal-cronjob.yaml differ")


def leaves(value):
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from leaves(inner)
    if not isinstance(value, (dict, list)):
        yield value


# The policy writes the container in another language: whatever the component says in it, the policy says, too.
policy = (REPOSITORY / "deploy/kustomize/inject/v1beta1/policy.yaml").read_text()
container = sidecar["spec"]["template"]["spec"]["initContainers"][0]
for key, value in container.items():
    # The ConfigMap's name is made from the pod's.
    for leaf in leaves(value) if key != "envFrom" else []:
        spelt = f"'{leaf}'" if isinstance(leaf, str) else f": {str(leaf).lower()}"
        if spelt not in policy:
            wrong.append(f"the injected container lacks {spelt} ({key}), which sidecar.yaml has")
chart = load(REPOSITORY / "deploy/helm/spanscore/Chart.yaml")[0]
version = next(line.split('"')[1] for line in (REPOSITORY / "Cargo.toml").read_text().splitlines() if line.startswith("version"))
images = {container["image"] for container in sidecar["spec"]["template"]["spec"]["initContainers"]}
if chart["appVersion"] != version or images != {f"spanscore:{version}"} or f"ARG VERSION={version}\n" not in (REPOSITORY / "deploy/Dockerfile").read_text():
    wrong.append(f"the chart's appVersion, the component's image and the Dockerfile are not all of version {version}")

for rendering in ("kustomize-journal.yaml", "kustomize-gateway.yaml", "helm-gateway.yaml", "helm-autoscaling.yaml", "helm-agent-journal.yaml", "helm-writer-journal.yaml"):
    if (FOLDER / rendering).exists() and not any(name.startswith(rendering) for name in journals):
        wrong.append(f"{rendering}: has no journal")
for rendering in ("kustomize-components.yaml", "helm-gateway-without-journal.yaml", "helm-agent-chart.yaml"):
    if any(name.startswith(rendering) for name in journals):
        wrong.append(f"{rendering}: has a journal")
# An autoscaler scales what is there.
for path in sorted(FOLDER.glob("*.yaml")):
    documents = load(path)
    there = {(document["kind"], document["metadata"]["name"]) for document in documents}
    for document in documents:
        if document["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"):
            target = document["spec"]["scaleTargetRef"]
            kind = target.get("kind", "Deployment")
            if (kind, target["name"]) not in there:
                wrong.append(f"{path.name}: scales a {kind} {target['name']} that is not there")
        if document["kind"] == "Service" and document["spec"]["selector"].get("app.kubernetes.io/component") == "judge":
            wrong.append(f"{path.name}: Service {document['metadata']['name']} leads to judges, which take nothing")
if n_in_part:
    print(f"!!! {SPANSCORE} is built without Kafka: {n_in_part} configurations were checked without `kafka.read` and `kafka.write`")
print("\n".join(wrong) or f"{n_containers} spanscore containers are as they should be, {n_configurations} configurations are valid")
sys.exit(bool(wrong))
