{{- /*
Leaves a login pod the capabilities that it needs, and the runtime's seccomp profile. A changed pod template ends the sessions of
everybody who is logged in, so a LoginSet that is installed keeps what it has: each of the two is decided by itself, since either may
have been set before this chart did. Arguments: root, name, spec (changed), values.
*/ -}}
{{- define "slurm.restrictLogin" -}}
{{- $wanted := .values.restrictCapabilities -}}
{{- $capabilities := $wanted -}}
{{- $seccomp := $wanted -}}
{{- if kindIs "invalid" $wanted -}}
{{- $before := lookup "slinky.slurm.net/v1beta1" "LoginSet" (include "slurm.namespace" .root) .name -}}
{{- $container := dig "spec" "login" "securityContext" dict $before | default dict -}}
{{- $pod := dig "spec" "template" "spec" "securityContext" dict $before | default dict -}}
{{- $capabilities = or (empty $before) (not (empty $container.capabilities)) -}}
{{- $seccomp = or (empty $before) (not (empty $container.seccompProfile)) (not (empty $pod.seccompProfile)) -}}
{{- end -}}
{{- $container := .spec.login.securityContext | default dict -}}
{{- if and $capabilities (not (or $container.privileged (hasKey $container "capabilities"))) -}}
{{- $_ := set $container "capabilities" (dict
    "drop" (list "ALL")
    "add" (list "AUDIT_WRITE" "CHOWN" "DAC_OVERRIDE" "FOWNER" "KILL" "NET_BIND_SERVICE" "SETGID" "SETUID" "SYS_CHROOT")) -}}
{{- $_ := set .spec.login "securityContext" $container -}}
{{- end -}}
{{- $pod := .spec.template.spec.securityContext | default dict -}}
{{- if and $seccomp (not (or $container.privileged $container.seccompProfile $pod.seccompProfile)) -}}
{{- $_ := set $pod "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- $_ := set .spec.template.spec "securityContext" $pod -}}
{{- end -}}
{{- end -}}
