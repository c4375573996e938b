{{- /* Name of the SlurmCluster. A release has one, so its name needs no suffix. */ -}}
{{- define "slurm-cluster.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name -}}
{{- end -}}

{{- define "slurm-cluster.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{- /*
Labels for the SlurmCluster. The operator copies them to its objects and pods, so these labels must not change with the chart version:
a changed pod template restarts pods.
*/ -}}
{{- define "slurm-cluster.objectLabels" -}}
app.kubernetes.io/part-of: slurm
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- /* Labels for all other objects in this chart. */ -}}
{{- define "slurm-cluster.labels" -}}
{{ include "slurm-cluster.objectLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- /* ServiceAccount of the test pod. Empty if it has none. */ -}}
{{- define "slurm-cluster.testAccount" -}}
{{- $account := .Values.tests.serviceAccount | default dict -}}
{{- if $account.name -}}
{{- $account.name -}}
{{- else if $account.create -}}
{{- include "slurm-cluster.fullname" . }}-test
{{- end -}}
{{- end -}}

{{- /*
Helm adopts existing objects. It would adopt a SlurmCluster that is being deleted, and then lose it. Fail until the deletion has
finished.
*/ -}}
{{- define "slurm-cluster.guardLeaving" -}}
{{- $namespace := include "slurm-cluster.namespace" . -}}
{{- $name := include "slurm-cluster.fullname" . -}}
{{- if and .Release.IsInstall (.Capabilities.APIVersions.Has "keelson.dev/v1alpha1/SlurmCluster") -}}
{{- if lookup "keelson.dev/v1alpha1" "SlurmCluster" $namespace $name | dig "metadata" "deletionTimestamp" "" -}}
{{- fail (printf "the previous cluster %s is still being deleted, and the new one would be deleted with it. Wait until the deletion has finished; to see what it is waiting for, run: kubectl --namespace %s describe slurmcluster %s" $name $namespace $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
