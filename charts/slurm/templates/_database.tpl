{{- define "slurm.hasDatabase" -}}
{{- if dig "enabled" false (.Values.mariadb | default dict) -}}true{{- end -}}
{{- end -}}

{{- define "slurm.databaseName" -}}
{{- include "slurm.fullname" . | trunc 55 | trimSuffix "-" }}-mariadb
{{- end -}}

{{- define "slurm.databaseLabels" -}}
app.kubernetes.io/name: mariadb
app.kubernetes.io/instance: {{ include "slurm.fullname" . }}
{{- end -}}

{{- /* The connection to the database, as JSON. */ -}}
{{- define "slurm.storageConfig" -}}
{{- $storage := deepCopy (.Values.accounting.storageConfig | default dict) -}}
{{- if include "slurm.hasDatabase" . -}}{{- $_ := set $storage "host" (include "slurm.databaseName" .) -}}{{- end -}}
{{- $storage | toJson -}}
{{- end -}}

{{- /* Rejects values that name two databases, or a database that nothing uses. */ -}}
{{- define "slurm.guardDatabase" -}}
{{- if include "slurm.hasDatabase" . -}}
{{- if not .Values.accounting.enabled -}}
{{- fail "mariadb.enabled is true, but accounting.enabled is false: nothing would use the database. Set accounting.enabled to true, or mariadb.enabled to false" -}}
{{- end -}}
{{- if .Values.accounting.external -}}
{{- fail "mariadb.enabled and accounting.external are both true: a slurmdbd that runs elsewhere has a database already. Set one of them to false" -}}
{{- end -}}
{{- $storage := .Values.accounting.storageConfig | default dict -}}
{{- if not (has ($storage.host | default "mariadb") (list "mariadb" (include "slurm.databaseName" .))) -}}
{{- fail (printf "mariadb.enabled is true, but accounting.storageConfig.host is %s, which is another database: remove one of them" $storage.host) -}}
{{- end -}}
{{- if $storage.tls -}}
{{- fail "accounting.storageConfig.tls is set, but the database of mariadb.enabled has no TLS: remove one of them" -}}
{{- end -}}
{{- if ne (int ($storage.port | default 3306)) 3306 -}}
{{- fail (printf "accounting.storageConfig.port is %v, but the database of mariadb.enabled listens on 3306: remove the port" $storage.port) -}}
{{- end -}}
{{- end -}}
{{- end -}}
