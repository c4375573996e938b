# Puts keys and configuration files where Slurm demands them: owned by its user and not readable by others.
# A projected volume's files belong to root.
set -eu
source=/mnt/slurm
target=/mnt/etc/slurm
owner=401:401
mkdir -p "$target"
for path in "$source"/*.conf "$source"/*.key; do
    [ -f "$path" ] || continue
    name=${path##*/}
    mode=644
    case $name in *.key | slurmdbd.conf) mode=600 ;; esac
    # Not readable by anybody while it is being written.
    (umask 077 && cat "$path" > "$target/$name.new")
    chown "$owner" "$target/$name.new"
    chmod "$mode" "$target/$name.new"
    mv -f "$target/$name.new" "$target/$name"
done
