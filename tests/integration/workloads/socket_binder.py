"""A server on a Unix socket in a folder of its own.

    socket_binder.py FOLDER [relative] [unnamed] [folderless] [renamed] [gone] [dotted]

`relative`: bound by a name that begins in the folder. Then the socket's name is removed (`unnamed`), and the folder
(`folderless`), or that gets another name (`renamed`). It answers each connection with what it is called. With `gone`
it removes all of it, as many programs do when they have no use for it any more, once there is a file FOLDER.go. With
`dotted` it has a second socket, FOLDER/../FOLDER.dotted/s.
"""

import os
import shutil
import socket
import sys
import threading
import time


def remove_when_told(folder):
    while not os.path.exists(folder + ".go"):
        time.sleep(0.005)
    shutil.rmtree(folder)


def main():
    folder, words = sys.argv[1], sys.argv[2:]
    os.mkdir(folder)
    os.chmod(folder, 0o2710)
    server = socket.socket(socket.AF_UNIX)
    if "relative" in words:
        os.chdir(folder)
        server.bind("server")
        os.chdir("/")
    else:
        server.bind(folder + "/server")
    server.listen()
    if "dotted" in words:
        os.mkdir(folder + ".dotted")
        second = socket.socket(socket.AF_UNIX)
        second.bind(os.path.join(folder, "..", os.path.basename(folder) + ".dotted", "s"))
        second.listen()
    if "unnamed" in words:
        os.unlink(folder + "/server")
    if "folderless" in words:
        os.rmdir(folder)
    if "renamed" in words:
        os.rename(folder, folder + ".renamed")
    if "gone" in words:
        threading.Thread(target=remove_when_told, args=(folder,), daemon=True).start()
    print("ready", flush=True)
    while True:
        connection, _ = server.accept()
        connection.sendall(server.getsockname().encode())
        connection.close()


if __name__ == "__main__":
    main()
