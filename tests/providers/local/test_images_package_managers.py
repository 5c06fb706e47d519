"""System-wide installs by the package managers of others, in boxes of images where they are at home: dnf itself, and
whatever apk asks of the kernel. apt has its tests beside those of images and of egress.

dnf and rpm are this machine's own packages, put together as an image that has no apt and no dpkg. What they install is
built by rpmbuild in a box of it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from tests.images.image_builds import Steps
from tests.images.packing import Key
from tests.providers.local import rootfs
from tests.providers.local.attacking import PRELUDE
from tests.providers.local.networking import Net, networked, run, works
from tests.providers.local.world import folder_site

from holdfast.api.ids import new_id
from holdfast.boxes import Box, BoxSpec
from holdfast.images import build, make_plan, parse_recipe
from holdfast.images.build_host import ProviderBuildHost
from holdfast.providers import portable_python
from holdfast.providers.local import LocalProvider
from holdfast.providers.local.images.dnf import amended

pytestmark = [pytest.mark.anyio, pytest.mark.sampled]
needs_dnf = pytest.mark.skipif(not rootfs.has_dnf(), reason="this machine has no dnf, rpm and createrepo-c to pack")
one_image = pytest.mark.xdist_group("dnf")

_SPEC: Final = rb"""
%global __os_install_post %{nil}
Name: tide
Version: 1.0
Release: 1
Summary: Tells the tide
License: MIT
BuildArch: noarch
Requires: moon >= 1.0
Requires(pre): /usr/sbin/useradd
%description
A program, and whatever packages do that only root may.

%package -n moon
Summary: Moves the sea
%description -n moon
Needed by others.

%package -n ground
Summary: What was there before the first package, as far as packages ask for it
Provides: system-release = 1.0
Provides: /bin/sh
Provides: /usr/sbin/useradd
%description -n ground
No files.

%install
install -D /dev/stdin %{buildroot}/usr/bin/tide <<'end'
#!/bin/sh
echo "$(cat /usr/share/moon) tide"
end
cp %{buildroot}/usr/bin/tide %{buildroot}/usr/bin/tide-of-root
cp %{buildroot}/usr/bin/tide %{buildroot}/usr/bin/tide-with-powers
ln -s tide %{buildroot}/usr/bin/ebb
mkdir -p %{buildroot}/usr/share %{buildroot}/var/lib/tide
echo high > %{buildroot}/usr/share/moon
echo 3 > %{buildroot}/var/lib/tide/level
ln %{buildroot}/var/lib/tide/level %{buildroot}/var/lib/tide/mark

%pre
getent group keeper > /dev/null || groupadd -r keeper
getent passwd keeper > /dev/null || useradd -r -g keeper -d /var/lib/tide keeper
%post
echo "came, $1" >> /var/log/tide
chown keeper:keeper /var/log/tide
%preun
echo "went, $1" >> /var/log/tide

%files
%attr(0755,root,root) /usr/bin/tide
/usr/bin/ebb
%attr(4755,root,root) /usr/bin/tide-of-root
%attr(0755,root,root) %caps(cap_net_raw=ep) /usr/bin/tide-with-powers
%attr(0750,keeper,keeper) %dir /var/lib/tide
%attr(0640,keeper,keeper) /var/lib/tide/level
%attr(0640,keeper,keeper) /var/lib/tide/mark
%files -n moon
%attr(0644,games,games) /usr/share/moon
%files -n ground
"""
_REPOSITORY: Final = b"""
[tides]
name=Tides
baseurl=https://rpm.test/
gpgcheck=1
gpgkey=https://rpm.test/key
sslcacert=/workspace/ca.pem
"""


@pytest.fixture(scope="module")
async def net(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Net]:
    """With an image where dnf is the package manager, and a repository of signed packages that were built there."""
    folder = tmp_path_factory.mktemp("packages")
    async with networked(folder) as net:
        await net.provider.images.import_archive("dnf", rootfs.pieces(rootfs.with_dnf(folder / "dnf.tar")))
        (folder / "dnf.tar").unlink()
        await _publish(net, folder / "repository")
        net.world.serve("rpm.test", folder_site(folder / "repository"))
        yield net


async def _publish(net: Net, folder: Path) -> None:
    maker = await net.provider.create(BoxSpec(image="dnf"), id=new_id("b"))
    await works(maker, "dnf", "--version")  # compiles itself, once for all boxes
    snapshot = await maker.snapshot()
    await net.provider.images.from_snapshot(snapshot.id, "dnf")
    await net.provider.delete_snapshot(snapshot.id)
    await maker.files.write("/root/tide.spec", _SPEC)
    await sh(maker, "rpmbuild -bb --quiet /root/tide.spec && tar -C /root/rpmbuild/RPMS/noarch -cf /out .")
    folder.mkdir()
    archive = await maker.files.read("/out")
    await asyncio.to_thread(subprocess.run, ["tar", "-x", "-C", str(folder)], input=archive, check=True, timeout=240)
    await maker.delete()
    _sign(folder)


def _sign(folder: Path) -> None:
    """Make a repository of a folder of packages."""
    key = Key(folder.parent / "gpg")
    try:
        macros = {"__gpg": shutil.which("gpg"), "_gpg_path": key.armoured.parent, "_gpg_name": key.fingerprint}
        packages = [str(each) for each in folder.glob("*.rpm")]
        assert len(packages) == 3
        defined = [part for name, value in macros.items() for part in ("--define", f"{name} {value}")]
        subprocess.run(["rpmsign", *defined, "--addsign", *packages], check=True, capture_output=True, timeout=240)
    finally:
        key.close()
    subprocess.run(["createrepo_c", "--quiet", str(folder)], check=True, capture_output=True, timeout=240)
    (folder / "key").write_bytes(key.armoured.read_bytes())


@pytest.fixture
async def box(net: Net) -> Box:
    """One that may reach the repository."""
    box = await net.box("rpm.test", image="dnf")
    await box.files.write("/etc/yum.repos.d/tides.repo", _REPOSITORY)
    return box


async def sh(box: Box, command: str) -> str:
    return (await works(box, "sh", "-c", command, timeout=60)).strip()


# --- dnf --------------------------------------------------------------------------------------------------------------


@needs_dnf
@one_image
async def test_dnf_installs_system_wide_from_a_repository_of_signed_packages_and_removes(net: Net, box: Box) -> None:
    await sh(box, "dnf install -y tide")
    assert await sh(box, "tide; ebb; tide-of-root; tide-with-powers") == "\n".join(["high tide"] * 4)
    assert await sh(box, "cat /var/log/tide; getent passwd keeper | cut -d: -f1,6") == "came, 1\nkeeper:/var/lib/tide"
    assert await sh(box, "rpm -qa --qf '%{name}\n' | sort") == "gpg-pubkey\nground\nmoon\ntide"
    assert await sh(box, "dnf -q repoquery --userinstalled --qf '%{name}'") == "tide"
    modes = await sh(box, "stat -c '%a %U %h' /usr/bin/tide-of-root /var/lib/tide /var/lib/tide/mark")
    assert modes == "4755 root 1\n750 root 2\n640 root 2", "one user owns everything, and modes and links are kept"
    changed = (await run(box, "rpm", "-V", "tide", "moon")).text.split("\n")
    assert {line[:9] for line in changed if line} == {".....UG..", "........P"}, "owners and capabilities, nothing else"
    assert {(each.host, each.allowed) for each in await net.decisions(box)} == {("rpm.test", True)}
    await sh(box, "dnf remove -y tide")
    left = await sh(box, "cat /var/log/tide; ls -d /usr/bin/tide /usr/share/moon /var/lib/tide 2> /dev/null || true")
    assert left == "came, 1\nwent, 0"
    assert await sh(box, "rpm -qa --qf '%{name}\n'") == "gpg-pubkey", "what only that needed went with it"


@needs_dnf
@one_image
async def test_the_database_of_rpm_goes_on_in_forks_and_in_images(net: Net, box: Box) -> None:
    await sh(box, "dnf install -y moon")
    fork = await box.fork(id=new_id("b"))
    snapshot = await box.snapshot()
    await net.provider.images.from_snapshot(snapshot.id, "dnf:moon")
    await net.provider.delete_snapshot(snapshot.id)
    again = await net.box("rpm.test", image="dnf:moon")
    for each in (fork, again):
        await sh(each, "rpmdb --verifydb && dnf install -y tide")
        assert await sh(each, "tide; rpm -q moon tide ground | sort") == (
            "high tide\nground-1.0-1.noarch\nmoon-1.0-1.noarch\ntide-1.0-1.noarch"
        )
    await sh(fork, "dnf remove -y moon")
    assert await sh(box, "rpm -q moon; cat /usr/share/moon") == "moon-1.0-1.noarch\nhigh", "boxes go their own ways"
    assert "nocaps, nocaps" not in await sh(again, "cat /etc/dnf/dnf.conf")


@needs_dnf
@one_image
async def test_packages_of_a_recipe_are_installed_by_dnf(net: Net, box: Box, tmp_path: Path) -> None:
    await box.files.write("/etc/yum.repos.d/tides.repo", _REPOSITORY.replace(b"/workspace/", b"/etc/"))
    await box.files.write("/etc/ca.pem", net.world.authority.pem)
    snapshot = await box.snapshot()
    await net.provider.images.from_snapshot(snapshot.id, "dnf:stocked")
    host = ProviderBuildHost(net.provider)
    recipe = parse_recipe('base = "dnf:stocked"\nnetwork = ["rpm.test"]\npackages = ["tide"]\n')
    for expected in (["tide"], []):
        steps = Steps()
        plan = make_plan(recipe, await host.image(recipe.base), tmp_path)
        await build(host, plan, "test/tide", recipe.network, steps)
        assert [each for each in steps.done if "tide" in each] == expected
    made = await net.provider.create(BoxSpec(image="test/tide"), id=new_id("b"))
    assert await sh(made, "tide") == "high tide"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "[main]\ntsflags=nocaps\n"),
        ("[tides]\nname=x\n", "[main]\ntsflags=nocaps\n[tides]\nname=x\n"),
        ("# of mine\n[main]\nbest=1\n", "# of mine\n[main]\ntsflags=nocaps\nbest=1\n"),
        ("[main]", "[main]\ntsflags=nocaps\n"),
        ("[main]\ntsflags=nodocs\nbest=1\n", "[main]\ntsflags=nocaps, nodocs\nbest=1\n"),
        ("[main]\ntsflags =\n", "[main]\ntsflags =nocaps\n"),
        ("[main]\n[tides]\ntsflags=nodocs\n", "[main]\ntsflags=nocaps\n[tides]\ntsflags=nodocs\n"),
        ("[main]\n#tsflags=nocaps\n", "[main]\ntsflags=nocaps\n#tsflags=nocaps\n"),
        ("[main]\ntsflags=nodocs nocaps\n", None),
        ("[main]\ntsflags=nodocs,nocaps\n", None),
    ],
)
async def test_dnf_is_told_beside_what_it_was_told_before(before: str, after: str | None) -> None:
    assert amended(before) == after
    assert after is None or amended(after) is None


# --- apk --------------------------------------------------------------------------------------------------------------
# There is none on machines that are no Alpine. This does what its source does with files and scripts to install a
# package, in its order: version 3, and the script in a file that version 2 had.

_APK: Final = """
import fcntl, stat
os.umask(0)
root = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
told = {}
for folder in ("lib/apk/db", "lib/apk/exec", "etc/apk", "var/cache/apk", "usr/bin", "var/lib/tide"):
    os.makedirs("/" + folder, exist_ok=True)

# Who owns the database decides whether it runs as root. Then the lock, which one has and not two.
told["owner"] = os.stat("lib/apk/db", dir_fd=root).st_uid
flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
lock = os.open("lib/apk/db/lock", flags, 0o600, dir_fd=root)
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
other = os.open("lib/apk/db/lock", flags, 0o600, dir_fd=root)
told["second lock"] = attempt(fcntl.flock, other, fcntl.LOCK_EX | fcntl.LOCK_NB)

# It asks whether it could have a namespace for scripts, and goes on without.
told["namespace"] = call(libc.unshare, 0)

def script(text, kept_in_memory):
    "A script of a package: in a root and an environment of its own, from memory or from a file."
    if kept_in_memory:
        held = os.memfd_create("tide.pre-install", 0)
        path = f"/proc/self/fd/{held}"
    else:
        path = "lib/apk/exec/tide.pre-install"
        held = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC | os.O_CLOEXEC, 0o755, dir_fd=root)
    os.write(held, text)
    if not kept_in_memory:
        os.close(held)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(write, 1)
            os.umask(0o022)
            os.fchdir(root)
            os.chroot(".")
            os.execve(path, ["tide.pre-install", "1.0"], {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        finally:
            os._exit(127)
    os.close(write)
    said = os.fdopen(read).read().strip()
    if not kept_in_memory:
        os.unlink(path, dir_fd=root)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said]
lines = b"#!/bin/sh\\necho keeper:x:100:101::/var/lib/tide:/bin/false >> /etc/passwd; echo $1 as $(id -u)\\n"
told["script"] = script(lines, False)
told["script in memory"] = script(lines, True)

# Every file comes under another name first, with owner, mode, attributes and time of its own.
def extract(name, kind, mode, uid, gid, target=None):
    folder, _, base = name.rpartition("/")
    temporary = f"{folder}/.apk.{base.encode().hex()}"
    attempt(os.unlink, temporary, dir_fd=root)
    follow = kind != stat.S_IFLNK
    if kind == stat.S_IFREG and target is None:
        file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_EXCL, mode, dir_fd=root)
        os.write(file, b"#!/bin/sh\\necho high tide\\n")
        os.close(file)
    elif kind == stat.S_IFREG:
        os.link(target, temporary, src_dir_fd=root, dst_dir_fd=root, follow_symlinks=False)
    elif kind == stat.S_IFLNK:
        os.symlink(target, temporary, dir_fd=root)
    else:
        os.mknod(temporary, kind | mode, dir_fd=root)
    os.chown(temporary, uid, gid, dir_fd=root, follow_symlinks=follow)
    if mode & 0o7000:
        os.chmod(temporary, mode, dir_fd=root)
    if follow:
        file = os.open(temporary, os.O_RDWR | os.O_NONBLOCK, dir_fd=root)
        if kind == stat.S_IFREG:
            os.setxattr(file, "user.tide", b"high")
            told["capability"] = attempt(os.setxattr, file, "security.capability", bytes([1, 0, 0, 2]) + bytes(16))
        os.close(file)
    os.utime(temporary, (1e9, 1e9), dir_fd=root, follow_symlinks=follow)
    return temporary
regular, link, pipe = stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO
parts = {"usr/bin/tide": extract("usr/bin/tide", regular, 0o4755, 0, 0)}
parts["usr/bin/flood"] = extract("usr/bin/flood", regular, 0o4755, 0, 0, parts["usr/bin/tide"])
parts["usr/bin/ebb"] = extract("usr/bin/ebb", link, 0o777, 100, 101, "tide")
parts["var/lib/tide/pipe"] = extract("var/lib/tide/pipe", pipe, 0o660, 100, 101)
for number in range(40):
    name = f"var/lib/tide/{number}"
    parts[name] = extract(name, regular, 0o640, 1000 + number, 70000 + number)
os.chmod("var/lib/tide", 0o2750, dir_fd=root)
os.chown("var/lib/tide", 100, 101, dir_fd=root)

# Then each takes its place, over what is there; a file of /etc that somebody changed stays.
open("/usr/bin/ebb", "w").close()
open("/etc/tide.conf", "w").write("of mine")
parts["etc/tide.conf.apk-new"] = extract("etc/tide.conf", regular, 0o644, 0, 0)
for name, temporary in parts.items():
    os.rename(temporary, name, src_dir_fd=root, dst_dir_fd=root)
for name in ("lib/apk/db/installed", "etc/apk/world"):
    file = os.open(name + ".tmp", os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644, dir_fd=root)
    os.write(file, b"tide\\n")
    os.close(file)
    os.rename(name + ".tmp", name, src_dir_fd=root, dst_dir_fd=root)
os.sync()
tell(told)
"""


async def test_what_apk_does_to_install_a_package_is_let_through(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path / "home") as provider:
        await provider.images.import_archive("busybox", rootfs.pieces(rootfs.busybox().done()))
        python = portable_python.prepare(provider.data_dir, provider.sandbox.mounted.host_python).command
        box = await provider.create(BoxSpec(image="busybox"), id=new_id("b"))
        done = await box.exec([*python, "-c", PRELUDE + _APK], timeout=60)
        assert done.ok, done.stderr.decode()
        assert json.loads(done.stdout) == {
            "owner": 0,
            "second lock": "EAGAIN",
            "namespace": "EPERM",
            "script": [0, "1.0 as 0"],
            "script in memory": [0, "1.0 as 0"],
            "capability": "EPERM",
        }
        fork = await box.fork(id=new_id("b"))
        for each in (box, fork):
            assert await sh(each, "tide; flood; ebb; cat /etc/tide.conf /etc/apk/world") == (
                "high tide\nhigh tide\nhigh tide\nof minetide"
            )
            told = await sh(each, "cd /usr/bin; stat -c '%a %h %Y' tide flood; readlink ebb; ls -a | grep apk || true")
            assert told == "4755 2 1000000000\n4755 2 1000000000\ntide"
            told = await sh(each, "cd /var/lib/tide; stat -c %a . pipe 39; ls | wc -l; grep -c keeper /etc/passwd")
            assert told == "2750\n660\n640\n41\n2"
            await each.delete()
