# Sourced by the other scripts, in the checkout's root folder: make .venv and install into it.
# Changes nothing outside the checkout but the caches of pip and uv, and prints to stderr only,
# because a script's own output may be meant for a program.

# The scripts start hundreds of processes. Without their bytecode each one compiles the library again.
unset PYTHONDONTWRITEBYTECODE

# environment EXTRA [FOLDER PYTHON]: .venv holds this checkout (editable) with that extra of pyproject.toml; for the extras
# "test" and "dev" also the distribution in bench. With FOLDER that is the environment, made with that Python.
environment() {
    local venv=${2:-.venv} python=${3:-}
    # One script at a time; the lock is on this folder and ends with the file descriptor.
    exec 9<.
    if command -v flock >/dev/null; then flock 9; fi
    # The stamp is what was installed: both files pyproject.toml.
    if ! "$venv/bin/python" -c '' 2>/dev/null || ! cat pyproject.toml bench/pyproject.toml | cmp -s - "$venv/.installed-$1"; then
        _install "$1" >&2
        local covered=("$1")
        # Those that it contains: another script shall install nothing again, least of all while tests run.
        case $1 in
            dev) covered+=(test docs examples embedded) ;;
            test) covered+=(examples embedded) ;;
        esac
        local extra
        for extra in "${covered[@]}"; do cat pyproject.toml bench/pyproject.toml >"$venv/.installed-$extra"; done
    fi
    exec 9<&-
}

_install() {
    local extra=$1 members=() bench=()
    case $extra in test | dev)
        members=(--all-packages) bench=(--editable ./bench)
        ;;
    esac
    python=${python:-$(_find_python)}
    echo "setting up $venv with $("$python" --version) for [$extra]"
    if command -v uv >/dev/null; then
        # It shall trust what the machine trusts, as pip does. The lock file names the public index:
        # behind a mirror, which only pip is told about, this fails and pip does it.
        if UV_PROJECT_ENVIRONMENT=$venv UV_PYTHON_DOWNLOADS=never UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1} uv sync --quiet --frozen --inexact --python "$python" \
            --extra "$extra" ${members[@]+"${members[@]}"}; then
            return
        fi
        echo "uv could not do it; trying venv and pip"
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "error: $python cannot make virtual environments: a package is missing"
        echo "hint: on Debian and Ubuntu: apt-get install python3-venv"
        exit 69
    fi
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        "$python" -m venv --clear "$venv"
    fi
    # The versions and hashes of the lock file, as with uv; then the checkout itself, which downloads nothing more.
    "$venv/bin/python" scripts/_requirements.py "$extra" >"$venv/requirements.txt"
    local pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps)
    "${pip[@]}" --require-hashes --requirement "$venv/requirements.txt"
    "${pip[@]}" --no-build-isolation --editable ".[$extra]" ${bench[@]+"${bench[@]}"}
}

_find_python() {
    local candidate
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "error: no Python 3.11 or newer on the PATH" >&2
    echo "hint: on Debian and Ubuntu: apt-get install python3 python3-venv" >&2
    exit 69
}

# other_python VERSION: print the path of that Python, such as 3.13, from the PATH or as pyenv or uv have it. Fails if it is not
# there: nothing is downloaded.
other_python() {
    local candidate candidates=("python$1")
    candidates+=("${PYENV_ROOT:-${HOME:-}/.pyenv}/versions/$1".*/bin/python)
    if command -v uv >/dev/null; then
        candidates+=("$(UV_PYTHON_DOWNLOADS=never uv python find --system "$1" 2>/dev/null)")
    fi
    for candidate in "${candidates[@]}"; do
        # A shim of pyenv is on the PATH also for a version that is not active, and fails.
        if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}
