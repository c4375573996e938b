{{- /* Namespace selector for a webhook: includes `only` (all if empty) and excludes `except`. */ -}}
{{- define "operator.webhookNamespaces" -}}
matchExpressions:
  {{- with .only }}
  - key: kubernetes.io/metadata.name
    operator: In
    values:
      {{- toYaml . | nindent 6 }}
  {{- end }}
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values:
      {{- toYaml .except | nindent 6 }}
{{- end -}}
