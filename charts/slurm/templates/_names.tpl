{{- define "slurm.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- .Values.fullnameOverride | default $full | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "slurm.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{- /*
Labels for the custom resources. The operator copies an object's labels to its pods, so these labels must not
change with the chart version: a changed pod template restarts pods.
*/ -}}
{{- define "slurm.objectLabels" -}}
app.kubernetes.io/part-of: slurm
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- /* Labels for all other objects in this chart. */ -}}
{{- define "slurm.labels" -}}
{{ include "slurm.objectLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- /* ServiceAccount of the test pod. Empty if it has none. */ -}}
{{- define "slurm.testAccount" -}}
{{- $account := .Values.tests.serviceAccount | default dict -}}
{{- if $account.name -}}
{{- $account.name -}}
{{- else if $account.create -}}
{{- include "slurm.fullname" . | trunc 58 | trimSuffix "-" }}-test
{{- end -}}
{{- end -}}

{{- /* A reference {name, key} as JSON. Arguments: root, ref (user-provided, may be empty), suffix, key. */ -}}
{{- define "slurm.keyRef" -}}
{{- $ref := .ref | default dict -}}
{{- dict "name" ($ref.name | default (printf "%s-%s" (include "slurm.fullname" .root) .suffix)) "key" ($ref.key | default .key) | toJson -}}
{{- end -}}

{{- define "slurm.slurmKeyRef" -}}
{{- include "slurm.keyRef" (dict "root" . "ref" .Values.slurmKey.secretRef "suffix" "auth-slurm" "key" "slurm.key") -}}
{{- end -}}

{{- define "slurm.jwtKeyRef" -}}
{{- include "slurm.keyRef" (dict "root" . "ref" .Values.jwtKey.secretRef "suffix" "auth-jwt" "key" "jwt.key") -}}
{{- end -}}

{{- define "slurm.jwksKeyRef" -}}
{{- include "slurm.keyRef" (dict "root" . "ref" .Values.jwksKeys.configMapRef "suffix" "auth-jwks" "key" "jwks.json") -}}
{{- end -}}

{{- define "slurm.sssdConfRef" -}}
{{- include "slurm.keyRef" (dict "root" . "ref" .Values.sssd.secretRef "suffix" "sssd-conf" "key" "sssd.conf") -}}
{{- end -}}
