{{- /* ConfigMaps for the files in values, as a JSON list of name, field (of the Controller) and data. */ -}}
{{- define "slurm.fileMaps" -}}
{{- $out := list -}}
{{- $kinds := list
    (dict "value" "configFiles" "suffix" "config-extra" "prefix" "" "field" "configFileRefs")
    (dict "value" "prologScripts" "suffix" "prolog-scripts" "prefix" "prolog-" "field" "prologScriptRefs")
    (dict "value" "epilogScripts" "suffix" "epilog-scripts" "prefix" "epilog-" "field" "epilogScriptRefs")
    (dict "value" "prologSlurmctldScripts" "suffix" "prolog-slurmctld-scripts" "prefix" "prolog-slurmctld-" "field" "prologSlurmctldScriptRefs")
    (dict "value" "epilogSlurmctldScripts" "suffix" "epilog-slurmctld-scripts" "prefix" "epilog-slurmctld-" "field" "epilogSlurmctldScriptRefs") -}}
{{- range $kind := $kinds -}}
{{- $data := dict -}}
{{- range $file, $content := get $.Values $kind.value -}}
{{- if not (kindIs "invalid" $content) -}}
{{- /* Slurm's configuration parsers require a final newline. */ -}}
{{- $_ := set $data (printf "%s%s" $kind.prefix $file) (printf "%s\n" (trimSuffix "\n" $content)) -}}
{{- end -}}
{{- end -}}
{{- $out = append $out (dict "name" (printf "%s-%s" (include "slurm.fullname" $) $kind.suffix) "field" $kind.field "data" $data) -}}
{{- end -}}
{{- $out | toJson -}}
{{- end -}}
