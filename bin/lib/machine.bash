# Sourced by .ci/run: what the tests want of a machine that is theirs alone. Nothing of this is needed to use Holdfast.
# shellcheck shell=bash

# Docker, for the tests of boxes there: where it is missing and cannot be had, they are skipped, and say so.
install_docker() {
    command -v dockerd >/dev/null && command -v docker >/dev/null && command -v busybox >/dev/null && return
    ((EUID == 0)) && command -v apt-get >/dev/null || return 0
    export DEBIAN_FRONTEND=noninteractive
    # The package would start a daemon of its own, which nobody needs.
    local policy=/usr/sbin/policy-rc.d made=
    [[ -e $policy ]] || { printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=1; }
    { apt-get -qq update && apt-get -qq install --no-install-recommends docker.io busybox-static iptables; } \
        >/dev/null 2>&1 </dev/null || printf '  %-12s %s\n' docker "cannot be installed here: its tests are skipped"
    [[ -z $made ]] || rm -f "$policy"
}

# A browser, for the tests of the live page: where it is missing and cannot be had, they are skipped, and say so.
install_chromium() {
    command -v chromium >/dev/null && return
    ((EUID == 0)) && command -v apt-get >/dev/null || return 0
    export DEBIAN_FRONTEND=noninteractive
    { apt-get -qq update && apt-get -qq install --no-install-recommends chromium fonts-dejavu-core; } \
        >/dev/null 2>&1 </dev/null || printf '  %-12s %s\n' chromium "cannot be installed here: its tests are skipped"
}

# dnf and rpm, for the tests of images where they are the package manager: where they are missing and cannot be had, these
# are skipped, and say so.
install_dnf() {
    command -v dnf >/dev/null && command -v rpmbuild >/dev/null && command -v createrepo_c >/dev/null && return
    ((EUID == 0)) && command -v apt-get >/dev/null || return 0
    export DEBIAN_FRONTEND=noninteractive
    { apt-get -qq update && apt-get -qq install --no-install-recommends dnf rpm createrepo-c; } \
        >/dev/null 2>&1 </dev/null || printf '  %-12s %s\n' dnf "cannot be installed here: its tests are skipped"
}
