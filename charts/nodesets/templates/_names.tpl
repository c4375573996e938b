{{- define "nodesets.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{- define "nodesets.cluster" -}}
{{- .Values.clusterName | required "clusterName is not set: name the SlurmCluster or Controller that the workers belong to" -}}
{{- end -}}

{{- /*
Labels for the NodeSets. The operator copies them to the pods, so these labels must not change with the chart version: a changed pod
template restarts pods.
*/ -}}
{{- define "nodesets.objectLabels" -}}
app.kubernetes.io/part-of: slurm
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- /* Labels for all other objects in this chart. */ -}}
{{- define "nodesets.labels" -}}
{{ include "nodesets.objectLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- /* PriorityClass of the workers. Empty if they have none. */ -}}
{{- define "nodesets.priorityClass" -}}
{{- $class := .Values.priorityClass | default dict -}}
{{- if $class.name -}}
{{- $class.name -}}
{{- else if $class.create -}}
{{- printf "%s-%s-workers" (include "nodesets.namespace" .) .Release.Name -}}
{{- end -}}
{{- end -}}

{{- /*
Helm adopts existing objects. It would adopt a NodeSet that is being deleted, and then lose it. Fail until the deletion has finished, also
in an upgrade: a set that was removed may be put back while its workers drain. Arguments: root, name.
*/ -}}
{{- define "nodesets.guardLeaving" -}}
{{- if .root.Capabilities.APIVersions.Has "slinky.slurm.net/v1beta1/NodeSet" -}}
{{- $namespace := include "nodesets.namespace" .root -}}
{{- if lookup "slinky.slurm.net/v1beta1" "NodeSet" $namespace .name | dig "metadata" "deletionTimestamp" "" -}}
{{- fail (printf "the previous NodeSet %s is still being deleted, and the new one would be deleted with it. Wait until the deletion has finished; to see what it is waiting for, run: kubectl --namespace %s describe nodeset %s" .name $namespace .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
