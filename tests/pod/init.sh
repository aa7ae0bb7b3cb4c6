# Makes this process, already in namespaces of its own, the first one of a container: what the manifests ask for.
# Arguments: the container's command. Environment: ROOT, an empty directory; APP, the sources; VENV and BASE, Python; RUNS,
# the volume; CONFIG, a file; SHM_BYTES, TMP_BYTES; USER_ID; HOSTNAME_OF_POD; CGROUP, a directory of the memory controller,
# or empty; MADE, a file that is written once all is there.
set -eu
test -z "$CGROUP" || echo 0 > "$CGROUP/cgroup.procs"
mount --make-rprivate /
hostname "$HOSTNAME_OF_POD"
ip link set lo up
mount -t tmpfs -o size=16m,mode=755 root "$ROOT"
cd "$ROOT"
mkdir -p usr etc/truestep proc sys dev tmp runs app

read_only() { mkdir -p "$2"; mount --rbind "$1" "$2"; mount -o remount,bind,ro "$2"; }

read_only /usr usr
for name in bin sbin lib lib64; do
    if [ -L "/$name" ]; then cp -P "/$name" .; elif [ -d "/$name" ]; then read_only "/$name" "$name"; fi
done
for name in passwd group nsswitch.conf ld.so.cache; do
    if [ -e "/etc/$name" ]; then cp "/etc/$name" etc/; fi
done
echo "127.0.0.1 localhost $HOSTNAME_OF_POD" > etc/hosts
cp "$CONFIG" etc/truestep/train.toml
mount -t tmpfs -o size="$TMP_BYTES",mode=1777 tmp tmp
read_only "$APP" app
for python in "$VENV" "$BASE"; do
    case "$python" in /usr | /usr/*) ;; *) read_only "$python" "$ROOT$python" ;; esac
done
mount --bind "$RUNS" runs
mount -t proc proc proc
mount --rbind /sys sys
mount -t tmpfs -o size=64k,mode=755 dev dev
for name in null zero full random urandom tty; do
    touch "dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
ln -s /proc/self/fd dev/fd
mkdir dev/shm
mount -t tmpfs -o size="$SHM_BYTES",mode=1777 shm dev/shm
mount -o remount,ro "$ROOT"
ulimit -n 65536 || true
echo made > "$MADE"
exec chroot "$ROOT" setpriv --reuid "$USER_ID" --regid "$USER_ID" --clear-groups --no-new-privs \
    --bounding-set=-all --inh-caps=-all "$@"
