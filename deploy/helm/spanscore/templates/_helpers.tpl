{{- define "spanscore.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "spanscore.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "spanscore.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- define "spanscore.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "spanscore.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "spanscore.selectorLabels" -}}
app.kubernetes.io/name: {{ include "spanscore.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ .Values.mode }}
{{- end }}

{{- define "spanscore.image" -}}
{{- $repository := required "image.repository is empty: name the registry and repository to which you pushed the image (deploy/Dockerfile)" .Values.image.repository }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" $repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- define "spanscore.configMapName" -}}
{{- if .Values.configMap.create }}
{{- include "spanscore.fullname" . }}
{{- else }}
{{- required "configMap.create is false: name a ConfigMap with the key spanscore.yaml in configMap.existingName" .Values.configMap.existingName }}
{{- end }}
{{- end }}

{{/* The configuration as it is mounted. A gateway closes traces before the autoscaler takes their pod away. */}}
{{- define "spanscore.config" -}}
{{- $config := .Values.config }}
{{- if eq .Values.mode "gateway" }}
{{- $config = mergeOverwrite (dict "assemble" (dict "expired" "30m")) (deepCopy $config) }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{/* Fails where the kubelet would kill the pod before `shutdown.deadline`. Durations are written as in `30s`, `2m` or `1h`; others cannot be compared here. */}}
{{- define "spanscore.checkGrace" -}}
{{- $deadline := toString (((.Values.config).shutdown).deadline | default "20s") }}
{{- $unit := dict "s" 1 "m" 60 "h" 3600 }}
{{- if regexMatch "^[0-9]+[smh]$" $deadline }}
{{- $seconds := mul (regexFind "^[0-9]+" $deadline | int) (get $unit (regexFind "[smh]$" $deadline)) }}
{{- if le (int .Values.terminationGracePeriodSeconds) (int $seconds) }}
{{- fail (printf "terminationGracePeriodSeconds is %d, and shutdown.deadline %s: the kubelet would kill the pod before it has judged and delivered everything; raise the first above the second" (int .Values.terminationGracePeriodSeconds) $deadline) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Changes when something does that is only read at start. */}}
{{- define "spanscore.podAnnotations" -}}
checksum/spanscore: {{ omit (include "spanscore.config" . | fromYaml) "criteria" "criteria_files" "tools" "explain" "expectations" | toYaml | sha256sum }}
{{- end }}

{{/* What every form of the container shares. */}}
{{- define "spanscore.container" -}}
name: spanscore
image: {{ include "spanscore.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
# Why it did not start shows in `kubectl describe pod`.
terminationMessagePolicy: FallbackToLogsOnError
{{- with .Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "spanscore.envFrom" -}}
{{- with .Values.extraEnvsFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "spanscore.probes" -}}
{{- if ne .Values.mode "judge" -}}
{{- /* Runs when the pod is told to end: judge what is done, go on taking the rest until SIGTERM. A judge hands its traces over as they are. */ -}}
lifecycle:
  preStop:
    exec:
      command: [/spanscore, drain]
{{ end -}}
startupProbe:
  httpGet: { path: {{ ternary "/livez" "/readyz" (eq .Values.mode "judge") }}, port: spanscore-admin }
  {{- with .Values.startupProbe }}{{ toYaml . | nindent 2 }}{{ end }}
readinessProbe:
  httpGet: { path: /readyz, port: spanscore-admin }
  {{- with .Values.readinessProbe }}{{ toYaml . | nindent 2 }}{{ end }}
livenessProbe:
  httpGet: { path: /livez, port: spanscore-admin }
  {{- with .Values.livenessProbe }}{{ toYaml . | nindent 2 }}{{ end }}
{{- with .Values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "spanscore.mounts" -}}
{{- /* The folder, never a subPath, which no edit would ever reach. */ -}}
- { name: spanscore, mountPath: /etc/spanscore, readOnly: true }
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "spanscore.configVolume" -}}
- name: spanscore
  configMap: { name: {{ include "spanscore.configMapName" . }} }
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The variables of a judge, which its check needs, too. */}}
{{- define "spanscore.judgeEnv" -}}
{{- if eq .Values.mode "judge" }}
- { name: SPANSCORE_KAFKA__READ__ENABLED, value: "true" }
{{- end }}
{{- end }}

{{/* What a judge reads: the brokers, the topic and the group. */}}
{{- define "spanscore.kafka" -}}
{{- $kafka := .Values.config.kafka | default dict }}
{{- $read := $kafka.read | default dict }}
{{- if not $kafka.brokers }}
{{- fail "config.kafka.brokers is empty: name some brokers of the topic that is to be judged, as `host:port`" }}
{{- end }}
{{- dict "brokers" $kafka.brokers "topic" (default "otlp_spans" $read.topic) "group" (default "spanscore" $read.group) "start" (default "latest" $read.start) | toYaml }}
{{- end }}

{{/* Whether there is a journal: `true`, or nothing. */}}
{{- define "spanscore.hasJournal" -}}
{{- if and (eq .Values.mode "judge") .Values.journal.enabled }}
{{- fail "a judge needs no journal: the topic is its journal; remove journal.enabled" }}
{{- end }}
{{- if ternary .Values.journal.enabled (eq .Values.mode "gateway") (kindIs "bool" .Values.journal.enabled) }}true{{ end }}
{{- end }}

{{/* The variables of the journal. */}}
{{- define "spanscore.journalEnv" -}}
{{- if include "spanscore.hasJournal" . }}
- { name: SPANSCORE_JOURNAL__DIRECTORY, value: /var/lib/spanscore/journal }
- { name: SPANSCORE_JOURNAL__MAX_SIZE, value: {{ default (ternary "6GiB" "256MiB" (eq .Values.mode "gateway")) .Values.journal.maxSize }} }
{{- end }}
{{- end }}

{{/* What its volume must hold: the requests and the scores. */}}
{{- define "spanscore.journalVolumeSize" -}}
{{- default (ternary "8Gi" "512Mi" (eq .Values.mode "gateway")) .Values.journal.volumeSize }}
{{- end }}

{{- define "spanscore.journalMount" -}}
{{- if include "spanscore.hasJournal" . }}
- { name: spanscore-journal, mountPath: /var/lib/spanscore }
{{- end }}
{{- end }}

{{/* A journal needs a volume for each pod. */}}
{{- define "spanscore.gatewayKind" -}}
{{- ternary "StatefulSet" "Deployment" (eq (include "spanscore.hasJournal" .) "true") }}
{{- end }}
