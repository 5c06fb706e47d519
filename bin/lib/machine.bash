# Sourced by bin/test, after environment.bash: the programs that tests want of the machine. Holdfast itself needs none of them.
#
#   install_missing_packages    installs them, for root on Debian or Ubuntu; sets `missing_packages` to what is still missing
#   make_folder_in_memory       prints a new folder that is not on a disk, or fails where there is no room for one
#   explain_skipped             says which tests were skipped because of that, and how to change it
# shellcheck shell=bash

install_missing_packages() {
    find_missing_packages
    ((${#missing_packages[@]})) || return 0
    if ((EUID == 0)) && command -v apt-get >/dev/null; then
        local started=${EPOCHREALTIME/[.,]/} status=0
        mkdir -p "$private" 2>/dev/null || fail "cannot write to $checkout" "use a checkout of your own"
        printf '  setting up   %s' "${missing_packages[*]}" >&2
        (while_locked install_packages "${missing_packages[@]}") >"$log" 2>&1 </dev/null || status=$?
        printf ' %s\n' "$(seconds_since "$started")" >&2
        ((status == 0)) || { echo "    apt-get failed, so some tests will be skipped:" && tail -n 5 "$log" | sed 's/^/    /'; } >&2
        find_missing_packages
    fi
}

make_folder_in_memory() {
    local folder kilobytes
    [[ $(stat -f -c %T /dev/shm 2>/dev/null) == tmpfs ]] || return
    kilobytes=$(df -k --output=avail /dev/shm | tail -n 1)
    ((kilobytes > 2000000)) || return
    folder=$(mktemp -d /dev/shm/hf.XXXXXX) || return
    printf '#!/bin/sh\n' >"$folder/program" && chmod +x "$folder/program"
    "$folder/program" 2>/dev/null || { rm -rf "$folder" && return 1; } # Docker allows no programs there
    rm "$folder/program"
    echo "$folder"
}

find_missing_packages() {
    missing_packages=()
    want "dockerd docker" docker.io iptables
    want busybox busybox-static
    want docker-registry docker-registry
    want chromium chromium fonts-dejavu-core
    want "Xvfb fluxbox x11vnc websockify xterm xdotool" xvfb fluxbox x11vnc novnc websockify xterm xdotool
    want "dnf rpmbuild createrepo_c" dnf rpm createrepo-c
    [[ -d /usr/lib/python3/dist-packages/PIL ]] || missing_packages+=(python3-pil)
    want git git
    want /usr/bin/pip python3-pip
    want /usr/bin/npm npm
    find_cargo || missing_packages+=(cargo)
}

# A cargo of rustup's is there and does nothing where HOME has no toolchain. Then Debian's comes first, if it is there.
find_cargo() {
    cargo_works && return
    [[ -x /usr/bin/cargo && -x /usr/bin/rustc ]] || return
    mkdir -p "$private/rust" && ln -sf /usr/bin/cargo /usr/bin/rustc "$private/rust/" && PATH=$private/rust:$PATH
    cargo_works
}

cargo_works() { rustc --print sysroot && cargo --version; } >/dev/null 2>&1

# want PROGRAMS PACKAGE...    the packages are missing unless all the programs are there
want() {
    local program
    for program in $1; do
        command -v "$program" >/dev/null || { missing_packages+=("${@:2}") && return; }
    done
}

install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    # Docker's package would start a daemon of its own. The tests start theirs.
    local policy=/usr/sbin/policy-rc.d made= status=0
    [[ -e $policy ]] || { printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=1; }
    local patient=(-o DPkg::Lock::Timeout=300) # another apt-get may be at work
    { apt-get "${patient[@]}" -q update && apt-get "${patient[@]}" -qy install --no-install-recommends "$@"; } || status=$?
    [[ -z $made ]] || rm -f "$policy"
    return "$status"
}

explain_skipped() {
    ((${#missing_packages[@]})) || return 0
    printf '  %-12s tests that want %s\n  %-12s as root: apt install --no-install-recommends %s\n' \
        skipped "${missing_packages[*]}" next "${missing_packages[*]}"
}
