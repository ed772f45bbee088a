#!/bin/sh
# Says which Debian packages a make target lacks. As root on a machine with apt-get it installs
# them; for anybody else it prints the line to run, and exits 2 if the target cannot do without.
#
#   [PYTHON=python3] tools/system_packages.sh setup|lint|lab|test ...
set -u
python=${PYTHON:-python3}
uid=$(id -u)

include() { "$python" -c 'import sysconfig; print(sysconfig.get_path("include"))'; }

has() { PATH=$PATH:/sbin:/usr/sbin command -v "$1"; }

# name          for     need    there when                            why; two blanks end a column.
# need: must = no target without it; root = only root can use it; maybe = only named.
table() {
    cat <<'TABLE'
g++             setup   must    has g++                               compiles the native module
cmake           setup   must    has cmake                             builds it
ninja-build     setup   must    has ninja                             runs that build
python3         setup   must    has "$python"                         runs everything else
python3-venv    setup   must    "$python" -m ensurepip --version      makes .venv
python3-dev     setup   must    test -f "$(include)/Python.h"         headers of that Python
clang-format-19 lint    must    has clang-format-19                   lays out C++, alike for all
iproute2        lab     root    has tc                                makes and shapes test networks
ethtool         lab     maybe   has ethtool                           switches their offloads off
dataset-fashion-mnist test root test -d /usr/share/datasets/fashion-mnist  for an example
TABLE
}

# Prints "name|need|why" for each package of the table that the targets want and the machine lacks.
missing() {
    table | while read -r name for need rest; do
        probe=${rest%%  *}
        why=$(printf '%s' "${rest#*  }" | sed 's/^ *//')
        for target in "$@"; do
            [ "$target" = "$for" ] || continue
            (eval "$probe") >/dev/null 2>&1 || echo "$name|$need|$why"
        done
    done
}

lacking=$(missing "$@")
[ -n "$lacking" ] || exit 0

wanted= needed=0
while IFS='|' read -r name need why; do
    case $need in
    must) wanted="$wanted $name" needed=1 ;;
    root) [ "$uid" = 0 ] && wanted="$wanted $name" || continue ;;
    maybe) why="optional: $why" ;;
    esac
    printf 'system package %s: %s\n' "$name" "$why"
done <<EOF
$lacking
EOF
[ -n "$wanted" ] || exit 0

line="apt-get update && apt-get install -y --no-install-recommends$wanted"
echo "$line"
if [ "$uid" = 0 ] && command -v apt-get >/dev/null; then
    DEBIAN_FRONTEND=noninteractive sh -c "$line" || exit 2
    if missing "$@" | grep '|must|' >&2; then
        echo "still missing after the installation (PYTHON=$python)" >&2
        exit 2
    fi
elif [ "$needed" = 1 ]; then
    echo "run that line as root (or install the same by other means), then make again" >&2
    exit 2
fi
