{{- /* Text for slurm.conf: the user's text, then one line for each partition. */ -}}
{{- define "slurm.controllerConf" -}}
{{- $lines := list -}}
{{- with include "slurm.conf" (dict "raw" .Values.controller.extraConf "map" .Values.controller.extraConfMap "separator" "\n") -}}
{{- $lines = append $lines . -}}
{{- end -}}
{{- $nodesets := include "slurm.nodesets" . | fromJson -}}
{{- range $name, $partition := .Values.partitions -}}
{{- if ($partition | default dict).enabled -}}
{{- $lines = append $lines (include "slurm.partitionLine" (dict "name" $name "partition" $partition "nodesets" $nodesets)) -}}
{{- end -}}
{{- end -}}
{{- join "\n" $lines -}}
{{- end -}}

{{- define "slurm.partitionLine" -}}
{{- $members := .partition.nodesets | default list | uniq | sortAlpha -}}
{{- $path := printf "partitions.%s" .name -}}
{{- if not $members -}}
{{- fail (printf "%s.nodesets is empty: list at least one NodeSet, or ALL" $path) -}}
{{- end -}}
{{- range $members -}}
{{- if not (or (eq . "ALL") (hasKey $.nodesets .)) -}}
{{- fail (printf "%s.nodesets refers to %q, but nodesets.%s does not exist or is disabled" $path . .) -}}
{{- end -}}
{{- end -}}
{{- $twin := get .nodesets .name | default dict -}}
{{- if dig "partition" "enabled" false $twin -}}
{{- fail (printf "%s and nodesets.%s.partition both create a partition with this name: disable one of them" $path .name) -}}
{{- end -}}
{{- $words := list (printf "PartitionName=%s" .name) (printf "Nodes=%s" (join "," $members)) -}}
{{- with include "slurm.conf" (dict "raw" .partition.config "map" .partition.configMap "separator" " ") -}}
{{- $words = append $words . -}}
{{- end -}}
{{- join " " $words -}}
{{- end -}}

{{- /*
References to ConfigMaps, in the same order as Slinky: user-provided, then created from values, then vendor. For prologs, Slinky puts
the one created from values first. The order does not affect slurm.conf, where scripts are sorted by name.
Arguments: field, refs (user-provided), inline (name of the ConfigMap created from values, or empty), vendor (list of names).
*/ -}}
{{- define "slurm.configMapRefs" -}}
{{- $inline := list -}}
{{- with .inline -}}{{- $inline = list (dict "name" .) -}}{{- end -}}
{{- $vendor := list -}}
{{- range .vendor -}}{{- $vendor = append $vendor (dict "name" .) -}}{{- end -}}
{{- $refs := .refs | default list -}}
{{- eq .field "prologScriptRefs" | ternary (concat $inline $refs $vendor) (concat $refs $inline $vendor) | toJson -}}
{{- end -}}

{{- /*
Annotations that make the operator create the key Secrets once, if they do not exist. Rendered manifests never contain key
material, so an upgrade or a GitOps sync cannot replace a key that daemons are using.
*/ -}}
{{- define "slurm.keyAnnotations" -}}
{{- $out := dict -}}
{{- $ours := not (or .Values.controller.external (and .Values.accounting.enabled .Values.accounting.external)) -}}
{{- $keys := dict "slurmKey" .Values.slurmKey "jwtKey" .Values.jwtKey -}}
{{- $made := list -}}
{{- $annotations := dict -}}
{{- range $name, $key := $keys -}}
{{- if and $ours $key.create -}}
{{- $made = append $made $name -}}
{{- with $key.annotations -}}{{- $_ := set $annotations $name . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq (len $made) (len $keys) -}}
{{- $_ := set $out "keelson.dev/generate" "true" -}}
{{- else if $made -}}
{{- $_ := set $out "keelson.dev/generate" (join "," $made) -}}
{{- end -}}
{{- with $annotations -}}{{- $_ := set $out "keelson.dev/generate-annotations" (toJson .) -}}{{- end -}}
{{- $out | toJson -}}
{{- end -}}

{{- /*
Helm adopts existing objects. It would adopt the objects of a cluster that is being deleted, and then lose them. Fail until the
deletion has finished.
*/ -}}
{{- define "slurm.guardLeaving" -}}
{{- $namespace := include "slurm.namespace" . -}}
{{- $name := include "slurm.fullname" . -}}
{{- if and .Release.IsInstall (.Capabilities.APIVersions.Has "slinky.slurm.net/v1beta1/Controller") -}}
{{- if lookup "slinky.slurm.net/v1beta1" "Controller" $namespace $name | dig "metadata" "deletionTimestamp" "" -}}
{{- fail (printf "the previous cluster %s is still being deleted, and the new one would be deleted with it. Wait until the deletion has finished; to see what it is waiting for, run: kubectl --namespace %s get controllers.slinky.slurm.net,nodesets" $name $namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /*
Other charts, such as Slinky's, render the key Secrets; this chart does not. During the switch Helm would delete them, and every
daemon would lose its key. Fail until the Secrets are annotated to be kept.
*/ -}}
{{- define "slurm.guardKeys" -}}
{{- $namespace := include "slurm.namespace" . -}}
{{- $doomed := list -}}
{{- range $value, $ref := dict "slurmKey" (include "slurm.slurmKeyRef" . | fromJson) "jwtKey" (include "slurm.jwtKeyRef" . | fromJson) -}}
{{- $annotations := lookup "v1" "Secret" $namespace $ref.name | dig "metadata" "annotations" dict -}}
{{- $rendered := eq (get $annotations "meta.helm.sh/release-name") $.Release.Name -}}
{{- if and (get $.Values $value).create $rendered (ne (get $annotations "helm.sh/resource-policy") "keep") -}}
{{- $doomed = append $doomed $ref.name -}}
{{- end -}}
{{- end -}}
{{- with $doomed | uniq | join " " -}}
{{- fail (printf "this upgrade would delete keys that running daemons use (Secrets %s). Annotate them to be kept, then upgrade again: kubectl --namespace %s annotate secret %s helm.sh/resource-policy=keep" . $namespace .) -}}
{{- end -}}
{{- end -}}
