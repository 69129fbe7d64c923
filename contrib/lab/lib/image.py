"""Pushes a file tree to the lab's registry, as an OCI image of one layer.

image.py REGISTRY NAME:TAG DIR [--entrypoint JSON] [--cmd JSON] [--user UID] [--env K=V]... [--workdir DIR]
         [--stop-signal SIGNAL] [--busybox]
--busybox adds a static busybox, its applets and /etc, /run, /tmp, /var to the tree.
All files belong to root in the image, and their modes are kept. The same tree and the same options
give the same digest. Prints the image's name with its digest.
"""

import argparse
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request


def json_list(text):
    value = json.loads(text)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise argparse.ArgumentTypeError("expected a JSON list of strings, found: " + text)
    return value


def add_busybox(archive, busybox, emulator):
    """Adds busybox, a link in /bin for each applet unless the tree has that file, and common folders."""
    existing = set(archive.getnames())

    def add(name, kind, mode, **more):
        if name in existing:
            return
        info = tarfile.TarInfo(name)
        info.type, info.mode = kind, mode
        for key, value in more.items():
            setattr(info, key, value)
        archive.addfile(info)

    for name, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777), ("var", 0o755), ("run", 0o755)):
        add(name, tarfile.DIRTYPE, mode)
    if "bin/busybox" not in existing:
        with open(busybox, "rb") as program:
            data = program.read()
        info = tarfile.TarInfo("bin/busybox")
        info.mode, info.size = 0o755, len(data)
        archive.addfile(info, io.BytesIO(data))
    command = [emulator, busybox, "--list"] if emulator else [busybox, "--list"]
    for applet in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split():
        if applet != "busybox":
            add("bin/" + applet, tarfile.SYMTYPE, 0o777, linkname="busybox")


def layer_of(folder, busybox, emulator):
    def normal(info):
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mtime = 0
        return info

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, folders, files in os.walk(folder):
            folders.sort()
            for name in sorted(files + [name for name in folders if os.path.islink(os.path.join(path, name))]):
                full = os.path.join(path, name)
                archive.add(full, os.path.relpath(full, folder), recursive=False, filter=normal)
            for name in folders:
                full = os.path.join(path, name)
                if not os.path.islink(full):
                    archive.add(full, os.path.relpath(full, folder), recursive=False, filter=normal)
        if busybox:
            add_busybox(archive, busybox, emulator)
    return buffer.getvalue()


class Registry:
    def __init__(self, address, repository):
        self.base = "http://%s/v2/%s" % (address, repository)
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def call(self, method, url, data=None, kind="application/octet-stream"):
        request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": kind})
        return self.opener.open(request, timeout=60)

    def has(self, digest):
        try:
            self.call("HEAD", "%s/blobs/%s" % (self.base, digest)).close()
            return True
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return False
            raise

    def blob(self, data, kind):
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        if not self.has(digest):
            upload_url = self.call("POST", self.base + "/blobs/uploads/", b"").headers["Location"]
            self.call("PUT", "%s%sdigest=%s" % (upload_url, "&" if "?" in upload_url else "?", digest), data).close()
        return {"mediaType": kind, "digest": digest, "size": len(data)}

    def manifest(self, tag, manifest):
        data = json.dumps(manifest).encode()
        self.call("PUT", "%s/manifests/%s" % (self.base, tag), data, manifest["mediaType"]).close()
        return "sha256:" + hashlib.sha256(data).hexdigest()


def main():
    parser = argparse.ArgumentParser(prog="kat-lab image")
    parser.add_argument("registry", help=argparse.SUPPRESS)
    parser.add_argument("image", metavar="NAME:TAG")
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--entrypoint", type=json_list)
    parser.add_argument("--cmd", type=json_list)
    parser.add_argument("--user")
    parser.add_argument("--env", action="append", default=[], metavar="K=V")
    parser.add_argument("--workdir")
    parser.add_argument("--stop-signal")
    parser.add_argument("--busybox", action="store_true", help="add a static busybox and its applets to /bin")
    parser.add_argument("--busybox-program", help=argparse.SUPPRESS)
    parser.add_argument("--architecture", help=argparse.SUPPRESS)
    parser.add_argument("--emulator", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not re.fullmatch(r"[a-z0-9]+([._/-][a-z0-9]+)*:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", options.image):
        parser.error("expected NAME:TAG, found: " + options.image)
    if not os.path.isdir(options.folder):
        parser.error("no such folder: " + options.folder)
    if not all("=" in entry for entry in options.env):
        parser.error("--env takes NAME=VALUE")
    repository, tag = options.image.rsplit(":", 1)

    layer = layer_of(options.folder, options.busybox_program if options.busybox else None, options.emulator)
    settings = {
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"] + options.env,
        "Entrypoint": options.entrypoint,
        "Cmd": options.cmd,
        "User": options.user,
        "WorkingDir": options.workdir,
        "StopSignal": options.stop_signal,
    }
    config = {
        "architecture": options.architecture,
        "os": "linux",
        "config": {key: value for key, value in settings.items() if value is not None},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
        "history": [{"created_by": "kat-lab image"}],
    }
    registry = Registry(options.registry, repository)
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": registry.blob(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": [registry.blob(layer, "application/vnd.oci.image.layer.v1.tar")],
    }
    print("registry.lab:5000/%s@%s" % (options.image, registry.manifest(tag, manifest)))


try:
    main()
except urllib.error.HTTPError as error:
    sys.exit("kat-lab: the registry refused: %s %s" % (error, error.read().decode("utf-8", "replace")))
except OSError as error:
    sys.exit("kat-lab: %s" % error)
