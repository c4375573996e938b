{{- /*
Egress rules for pods that run user programs, as JSON: DNS, the members of the cluster on all ports (srun uses random ports), and the
user's rules. Arguments: egress (values), members (peers).
*/ -}}
{{- define "slurm.policy.egress" -}}
{{- $rules := list (dict "to" (include "slurm.policy.peers" (dict "peers" .members "linkLocal" .egress.linkLocal) | fromJsonArray)) -}}
{{- with .egress.dns -}}
{{- $ports := list -}}
{{- range $.egress.dnsPorts | default (list 53) -}}
{{- $ports = concat $ports (list (dict "port" . "protocol" "UDP") (dict "port" . "protocol" "TCP")) -}}
{{- end -}}
{{- $rules = append $rules (dict "to" . "ports" $ports) -}}
{{- end -}}
{{- range .egress.rules -}}
{{- $peers := include "slurm.policy.peers" (dict "peers" .to "linkLocal" $.egress.linkLocal) | fromJsonArray -}}
{{- $rules = append $rules (merge (dict "to" $peers) .) -}}
{{- end -}}
{{- $rules | toJson -}}
{{- end -}}

{{- /*
Peers as JSON. 0.0.0.0/0 and ::/0 exclude link-local addresses unless linkLocal is set: cloud metadata services serve node credentials there.
Arguments: peers, linkLocal.
*/ -}}
{{- define "slurm.policy.peers" -}}
{{- $peers := deepCopy (.peers | default list) -}}
{{- if not .linkLocal -}}
{{- range $peer := $peers -}}
{{- with $peer.ipBlock -}}
{{- $local := get (dict "0.0.0.0/0" (list "169.254.0.0/16") "::/0" (list "fe80::/10" "fd00:ec2::254/128")) .cidr | default list -}}
{{- with concat (.except | default list) $local | uniq -}}{{- $_ := set $peer.ipBlock "except" . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $peers | toJson -}}
{{- end -}}
