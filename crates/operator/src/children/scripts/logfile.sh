# Prints what a daemon writes to $SOCKET, a FIFO. Ends when asked to.
set -eu
trap 'exit 0' TERM
trap 'exit 1' INT HUP
if [ ! -p "$SOCKET" ]; then
    mkdir -p "${SOCKET%/*}"
    rm -f "$SOCKET"
    mkfifo -m 600 "$SOCKET"
fi
# Each writer's end of file ends cat; wait in the background so that TERM is not held up by it.
while :; do
    cat "$SOCKET" &
    wait $! || :
done
