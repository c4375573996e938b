{{- /* Names and labels. A "component" is a dict of root (the chart context) and name (operator or webhook). */ -}}

{{- define "operator.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "operator.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- .Values.fullnameOverride | default $full | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "operator.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{- /* Name of a component's Deployment and Service. */ -}}
{{- define "operator.componentName" -}}
{{- $name := include "operator.name" .root -}}
{{- eq .name "operator" | ternary $name (printf "%s-webhook" $name) -}}
{{- end -}}

{{- define "operator.webhookName" -}}
{{- include "operator.componentName" (dict "root" . "name" "webhook") -}}
{{- end -}}

{{- define "operator.serviceAccountName" -}}
{{- $account := (get .root.Values .name).serviceAccount | default dict -}}
{{- $created := eq .name "operator" | ternary (include "operator.fullname" .root) (include "operator.componentName" .) -}}
{{- $account.name | default ($account.create | ternary $created "default") -}}
{{- end -}}

{{- define "operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "operator.componentName" . }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end -}}

{{- define "operator.labels" -}}
{{ include "operator.selectorLabels" . }}
app.kubernetes.io/part-of: slurm-operator
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- /* Converts comma-separated namespaces to a JSON list. */ -}}
{{- define "operator.namespaceList" -}}
{{- $names := list -}}
{{- range splitList "," (. | default "") -}}
{{- with trim . -}}{{- $names = append $names . -}}{{- end -}}
{{- end -}}
{{- $names | uniq | toJson -}}
{{- end -}}
