{{- /*
Users and groups, mounted into pods as libnss-extrausers files. The ConfigMap is mounted as a directory, so changes reach running
pods. Pod templates contain the volume only if `users` or `groups` is set, because a changed template replaces pods.
*/ -}}
{{- define "slurm.usersEnabled" -}}
{{- if not (and (kindIs "invalid" .Values.users) (kindIs "invalid" .Values.groups)) -}}true{{- end -}}
{{- end -}}

{{- define "slurm.usersName" -}}
{{- printf "%s-users" (include "slurm.fullname" .) -}}
{{- end -}}

{{- /*
Validates names of users and groups. A name that exists in the image would hide the one from values, because the image's files are
read first. The schema could only report such names as "not allowed". Arguments: path, name.
*/ -}}
{{- define "slurm.guardUserName" -}}
{{- if not (regexMatch "^[a-z_]([a-z0-9_.-]{0,30}[a-z0-9_-])?$" .name) -}}
{{- fail (printf "%s.%s is not a valid name: use at most 32 lowercase letters, digits, '_', '.' and '-', starting with a letter or '_'" .path .name) -}}
{{- end -}}
{{- $taken := splitList " " "root daemon bin sys sync games man lp mail news uucp proxy www-data backup list irc nobody nogroup _apt messagebus sshd sssd slurm systemd-network systemd-journal adm tty disk dialout fax voice cdrom floppy tape sudo audio dip operator src shadow utmp video sasl plugdev staff users input sgx clock kvm render crontab netdev _ssh" -}}
{{- if has .name $taken -}}
{{- fail (printf "%s.%s: the images already contain a user or group with this name: choose another name" .path .name) -}}
{{- end -}}
{{- end -}}

{{- /*
Contents of passwd, group and the authorized keys files, by file name, as JSON. A user whose primary group is not in `groups` gets a
group with the same name.
*/ -}}
{{- define "slurm.userFiles" -}}
{{- $files := dict -}}
{{- $gids := dict -}}{{- /* gid -> values path of the group that has it */ -}}
{{- $numbers := dict -}}{{- /* group name -> gid */ -}}
{{- $members := dict -}}{{- /* group name -> member names -> true */ -}}
{{- $users := .Values.users | default dict -}}
{{- range $name, $group := .Values.groups -}}
{{- if $group -}}
{{- include "slurm.guardUserName" (dict "path" "groups" "name" $name) -}}
{{- $gid := int64 $group.gid | toString -}}
{{- with get $gids $gid -}}
{{- fail (printf "groups.%s.gid is %s, which is already used by %s: give each group a unique gid" $name $gid .) -}}
{{- end -}}
{{- $_ := set $gids $gid (printf "groups.%s" $name) -}}
{{- $_ := set $numbers $name $gid -}}
{{- $_ := set $members $name dict -}}
{{- range $group.members -}}
{{- if not (get $users .) -}}
{{- fail (printf "groups.%s.members refers to %q, but users.%s does not exist" $name . .) -}}
{{- end -}}
{{- $_ := set (get $members $name) . true -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $passwd := list -}}
{{- $uids := dict -}}
{{- range $name, $user := $users -}}
{{- if $user -}}
{{- include "slurm.guardUserName" (dict "path" "users" "name" $name) -}}
{{- $uid := int64 $user.uid | toString -}}
{{- with get $uids $uid -}}
{{- fail (printf "users.%s.uid is %s, which is already used by %s: give each user a unique uid" $name $uid .) -}}
{{- end -}}
{{- $_ := set $uids $uid (printf "users.%s" $name) -}}
{{- $gid := get $numbers $name | default $uid -}}
{{- if not (kindIs "invalid" $user.gid) -}}
{{- $gid = int64 $user.gid | toString -}}
{{- else if and (hasKey $gids $gid) (not (hasKey $numbers $name)) -}}
{{- fail (printf "users.%s has no gid, and the gid for its private group, %s, is already used by %s: set users.%s.gid" $name $gid (get $gids $gid) $name) -}}
{{- end -}}
{{- if not (hasKey $gids $gid) -}}
{{- if hasKey $numbers $name -}}
{{- fail (printf "users.%s.gid is %s, but groups.%s has gid %s: remove users.%s.gid or add a group with gid %s" $name $gid $name (get $numbers $name) $name $gid) -}}
{{- end -}}
{{- $_ := set $gids $gid (printf "the group of users.%s" $name) -}}
{{- $_ := set $numbers $name $gid -}}
{{- $_ := set $members $name dict -}}
{{- else if hasPrefix "the group of" (get $gids $gid) -}}
{{- fail (printf "users.%s has gid %s, which is already used by %s: add a group with this gid to groups, or use different gids" $name $gid (get $gids $gid)) -}}
{{- end -}}
{{- range $user.groups -}}
{{- if not (get ($.Values.groups | default dict) .) -}}
{{- fail (printf "users.%s.groups refers to %q, but groups.%s does not exist" $name . .) -}}
{{- end -}}
{{- $_ := set (get $members .) $name true -}}
{{- end -}}
{{- /* `*` disables password login and needs no shadow file. */ -}}
{{- $passwd = append $passwd (printf "%s:*:%s:%s::%s:%s\n" $name $uid $gid ($user.home | default (printf "/home/%s" $name)) ($user.shell | default "/bin/bash")) -}}
{{- $keys := list -}}
{{- range $user.sshKeys -}}{{- $keys = append $keys (printf "%s\n" (trim .)) -}}{{- end -}}
{{- if $keys -}}{{- $_ := set $files (printf "authorized_keys.%s" $name) (join "" $keys) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $lines := list -}}
{{- range $name, $gid := $numbers -}}
{{- $lines = append $lines (printf "%s:*:%s:%s\n" $name $gid (get $members $name | keys | sortAlpha | join ",")) -}}
{{- end -}}
{{- $_ := set $files "passwd" (join "" $passwd) -}}
{{- $_ := set $files "group" (join "" $lines) -}}
{{- $files | toJson -}}
{{- end -}}

{{- /* Mounts the files. Arguments: root, spec (modified), container (its name in the spec), path (values path, for messages). */ -}}
{{- define "slurm.mountUsers" -}}
{{- if include "slurm.usersEnabled" .root -}}
{{- $directory := "/var/lib/extrausers" -}}
{{- $container := get .spec .container -}}
{{- range $container.volumeMounts -}}
{{- if eq (trimSuffix "/" .mountPath) $directory -}}
{{- fail (printf "%s.%s.volumeMounts contains %s, where the chart mounts users and groups: remove the mount, or set neither users nor groups" $.path $.container $directory) -}}
{{- end -}}
{{- end -}}
{{- $mount := dict "name" "extrausers" "mountPath" $directory "readOnly" true -}}
{{- $_ := set $container "volumeMounts" (append ($container.volumeMounts | default list) $mount) -}}
{{- $pod := .spec.template.spec -}}
{{- $volume := dict "name" "extrausers" "configMap" (dict "name" (include "slurm.usersName" .root) "optional" true) -}}
{{- $_ := set $pod "volumes" (append ($pod.volumes | default list) $volume) -}}
{{- end -}}
{{- end -}}
