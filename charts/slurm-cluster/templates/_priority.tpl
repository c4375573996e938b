{{- /* Name of the PriorityClass of a group of pods. Empty if they have none. Arguments: root, group. */ -}}
{{- define "slurm-cluster.priorityClass" -}}
{{- $classes := .root.Values.priorityClasses | default dict -}}
{{- $class := get $classes .group | default dict -}}
{{- if $class.name -}}
{{- $class.name -}}
{{- else if and $classes.create $class -}}
{{- printf "%s-%s-%s" (include "slurm-cluster.namespace" .root) (include "slurm-cluster.fullname" .root) (kebabcase .group) -}}
{{- end -}}
{{- end -}}

{{- /* The PriorityClasses to create, from the highest to the lowest, as JSON. */ -}}
{{- define "slurm-cluster.priorityClasses" -}}
{{- $out := list -}}
{{- $classes := .Values.priorityClasses | default dict -}}
{{- if $classes.create -}}
{{- $above := dict -}}
{{- range $group := list "controlPlane" "logins" "workers" -}}
{{- $class := get $classes $group -}}
{{- if $class -}}
{{- $value := int64 $class.value -}}
{{- if and $above (ge $value $above.value) -}}
{{- fail (printf "priorityClasses.%s.value is %d, but priorityClasses.%s.value is %d and must be higher: otherwise %s could be evicted to make room for %s" $group $value $above.group $above.value (get $above "pods") (lower $group)) -}}
{{- end -}}
{{- $pods := eq $group "controlPlane" | ternary "slurmctld" (lower $group) -}}
{{- $above = dict "group" $group "value" $value "pods" $pods -}}
{{- $name := include "slurm-cluster.priorityClass" (dict "root" $ "group" $group) -}}
{{- $out = append $out (dict "name" $name "value" $value "preemptionPolicy" ($class.preemptionPolicy | default "PreemptLowerPriority") "pods" $pods) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $out | toJson -}}
{{- end -}}

{{- /* Sets the PriorityClass of all pods that name none. Arguments: root, spec (modified). */ -}}
{{- define "slurm-cluster.setPriorities" -}}
{{- $spec := .spec -}}
{{- with include "slurm-cluster.priorityClass" (dict "root" .root "group" "controlPlane") -}}
{{- if include "slurm-cluster.hasController" $spec -}}
{{- $_ := set $spec "controller" ($spec.controller | default dict) -}}
{{- include "slurm-cluster.setPriority" (list $spec.controller .) -}}
{{- end -}}
{{- $_ := set $spec "restApi" ($spec.restApi | default dict) -}}
{{- include "slurm-cluster.setPriority" (list $spec.restApi .) -}}
{{- if hasKey $spec "accounting" -}}
{{- $accounting := $spec.accounting -}}
{{- if dig "enabled" true $accounting -}}
{{- if not $accounting.external -}}{{- include "slurm-cluster.setPriority" (list $accounting .) -}}{{- end -}}
{{- /* The operator runs a database unless the values say where one is. */ -}}
{{- if not (or $accounting.database (hasKey $accounting "storageConfig") (hasKey $accounting "external")) -}}
{{- $_ := set $accounting "database" (dict "embedded" dict) -}}
{{- end -}}
{{- if hasKey ($accounting.database | default dict) "embedded" -}}
{{- include "slurm-cluster.setPriority" (list $accounting.database.embedded .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $field, $group := dict "login" "logins" "nodeSets" "workers" -}}
{{- with include "slurm-cluster.priorityClass" (dict "root" $.root "group" $group) -}}
{{- $class := . -}}
{{- range $part := get $spec $field | default dict -}}{{- include "slurm-cluster.setPriority" (list $part $class) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Arguments: a list of the part (modified) and the name of the PriorityClass. */ -}}
{{- define "slurm-cluster.setPriority" -}}
{{- $part := index . 0 -}}
{{- $_ := set $part "template" ($part.template | default dict) -}}
{{- $_ := set $part.template "spec" ($part.template.spec | default dict) -}}
{{- if not (hasKey $part.template.spec "priorityClassName") -}}
{{- $_ := set $part.template.spec "priorityClassName" (index . 1) -}}
{{- end -}}
{{- end -}}
