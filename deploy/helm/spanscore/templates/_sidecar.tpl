{{/*
For charts that depend on this one, with its values under `spanscore:` and `mode: sidecar`. In the pod template of a Deployment or Job:

  metadata:
    labels:
      {{- include "spanscore.sidecar.labels" .Subcharts.spanscore | nindent 8 }}
    annotations:
      {{- include "spanscore.podAnnotations" .Subcharts.spanscore | nindent 8 }}
  spec:
    initContainers:
      {{- include "spanscore.sidecar" .Subcharts.spanscore | nindent 8 }}
    volumes:
      {{- include "spanscore.sidecar.volumes" .Subcharts.spanscore | nindent 8 }}
*/}}

{{- define "spanscore.sidecar" -}}
- {{- include "spanscore.container" . | nindent 2 }}
  # A native sidecar: there before the agent starts and until it has ended, and no Job waits for it.
  restartPolicy: Always
  args: {{ prepend .Values.extraArgs "run" | toJson }}
  env:
    - { name: SPANSCORE_ADMIN__LISTEN, value: "0.0.0.0:13133" }
    # SIGTERM comes when the agent has ended: there is nobody left to wait for.
    - { name: SPANSCORE_SHUTDOWN__QUIET, value: 100ms }
    # The exit code of a native sidecar fails no Job; it shows in the container's last state.
    - { name: SPANSCORE_SHUTDOWN__EXIT_UNDELIVERED, value: "true" }
    # A mistake in the criteria must not keep the agent from starting.
    - { name: SPANSCORE_RELOAD__AT_START, value: forward }
    {{- with include "spanscore.journalEnv" . }}{{ . | trim | nindent 4 }}{{ end }}
    {{- with .Values.extraEnvs }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with include "spanscore.envFrom" . }}{{ . | nindent 2 }}{{ end }}
  ports:
    - { name: spanscore-admin, containerPort: 13133 }
  {{- include "spanscore.probes" . | nindent 2 }}
  volumeMounts:
    {{- include "spanscore.mounts" . | nindent 4 }}
    {{- with include "spanscore.journalMount" . }}{{ . | trim | nindent 4 }}{{ end }}
    # The agent may need the pod's token; the sidecar gets an empty folder in its place.
    - { name: spanscore-no-token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true }
{{- end }}

{{- define "spanscore.sidecar.volumes" -}}
{{ include "spanscore.configVolume" . }}
- name: spanscore-no-token
  emptyDir: { sizeLimit: 1Mi }
{{- if include "spanscore.hasJournal" . }}
- name: spanscore-journal
  emptyDir: { sizeLimit: {{ include "spanscore.journalVolumeSize" . }} }
{{- end }}
{{- end }}

{{/* What PodMonitor and NetworkPolicy select: those of this release both, those of the kustomize components the first. */}}
{{- define "spanscore.sidecar.labels" -}}
spanscore/sidecar: "on"
spanscore/release: {{ include "spanscore.fullname" . }}
{{- end }}
