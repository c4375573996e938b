{{- /* Values that are not fields of the SlurmCluster's spec. All others are passed on as they are. */ -}}
{{- define "slurm-cluster.ownValues" -}}
{{- list "fullnameOverride" "namespaceOverride" "metadata" "priorityClasses" "users" "groups" "tests" "extraObjects" "global" | toJson -}}
{{- end -}}

{{- /*
Removes values that are null from a map, in place. Below the fields in `keep`, null is part of the value: there it removes a field
that the operator would set. Arguments: a list of the map and the names of these fields.
*/ -}}
{{- define "slurm-cluster.removeNulls" -}}
{{- $map := index . 0 -}}
{{- $keep := index . 1 -}}
{{- range $key, $value := $map -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $map $key -}}
{{- else if and (kindIs "map" $value) (not (has $key $keep)) -}}
{{- include "slurm-cluster.removeNulls" (list $value $keep) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The values that are fields of the spec, as JSON. */ -}}
{{- define "slurm-cluster.values" -}}
{{- $spec := dict -}}
{{- /* Containers, pod specs and Service specs, which the operator merges. */ -}}
{{- $merged := list "slurmctld" "reconfigure" "logfile" "slurmdbd" "mariadb" "slurmrestd" "initconf" "slurmd" "spec" -}}
{{- $own := include "slurm-cluster.ownValues" . | fromJsonArray -}}
{{- range $field, $value := deepCopy .Values -}}
{{- if not (or (has $field $own) (kindIs "invalid" $value)) -}}
{{- if has $field (list "login" "nodeSets") -}}
{{- range $name, $entry := $value -}}
{{- if kindIs "invalid" $entry -}}
{{- $_ := unset $value $name -}}
{{- else -}}
{{- include "slurm-cluster.removeNulls" (list $entry (eq $field "login" | ternary (append $merged "login") $merged)) -}}
{{- end -}}
{{- end -}}
{{- else if kindIs "map" $value -}}
{{- include "slurm-cluster.removeNulls" (list $value (has $field (list "controller" "accounting" "restApi") | ternary $merged list)) -}}
{{- end -}}
{{- /* Empty by default, which is the same as absent. */ -}}
{{- if not (and (empty $value) (has $field (list "images" "auth" "controller" "restApi" "login" "nodeSets" "storage" "files"))) -}}
{{- $_ := set $spec $field $value -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $spec | toJson -}}
{{- end -}}

{{- /* The spec of the SlurmCluster, as JSON. */ -}}
{{- define "slurm-cluster.spec" -}}
{{- $spec := include "slurm-cluster.values" . | fromJson -}}
{{- include "slurm-cluster.setPriorities" (dict "root" . "spec" $spec) -}}
{{- include "slurm-cluster.setUsers" (dict "root" . "spec" $spec) -}}
{{- $spec | toJson -}}
{{- end -}}

{{- /* Whether slurmctld runs in this cluster. Empty if not. Arguments: spec. */ -}}
{{- define "slurm-cluster.hasController" -}}
{{- if not (dig "controller" "external" false .) -}}true{{- end -}}
{{- end -}}

{{- /*
Adds the users to slurmctld, login pods and workers. The operator merges lists of the same field as a whole, so the mounts follow the
user's own. Arguments: root, spec (modified).
*/ -}}
{{- define "slurm-cluster.setUsers" -}}
{{- if include "slurm-cluster.usersEnabled" .root -}}
{{- if include "slurm-cluster.hasController" .spec -}}
{{- $_ := set .spec "controller" (.spec.controller | default dict) -}}
{{- include "slurm-cluster.setUsersOf" (dict "root" .root "part" .spec.controller "container" "slurmctld" "path" "controller") -}}
{{- end -}}
{{- range $name, $part := .spec.login -}}
{{- include "slurm-cluster.setUsersOf" (dict "root" $.root "part" $part "container" "login" "path" (printf "login.%s" $name)) -}}
{{- end -}}
{{- range $name, $part := .spec.nodeSets -}}
{{- include "slurm-cluster.setUsersOf" (dict "root" $.root "part" $part "container" "slurmd" "path" (printf "nodeSets.%s" $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "slurm-cluster.setUsersOf" -}}
{{- $_ := set .part .container (get .part .container | default dict) -}}
{{- $_ := set .part "template" (.part.template | default dict) -}}
{{- $_ := set .part.template "spec" (.part.template.spec | default dict) -}}
{{- include "slurm-cluster.mountUsers" (dict "root" .root "spec" .part "container" .container "path" .path) -}}
{{- end -}}
