{{- /* Namespaces that a webhook is asked about: `only` these (empty: all), never those of `except`. */ -}}
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
