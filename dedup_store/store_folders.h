// Of a store, for who looks at its folders without opening it. docs/store-format.md describes them.
#pragma once

namespace rekindle::store {

// What is told of a file system that can't be written.
inline constexpr char kIsReadOnly[] =
    "its file system is mounted read-only. Where that was done by hand, remount it (mount -o remount,rw). "
    "Where it "
    "was the kernel, after an error of the disk ('dmesg' tells), end what uses it, rekindled included, whose "
    "jobs "
    "run on, then unmount, check (fsck) and mount it";

inline constexpr const char* kFolders[] = {"packs", "index", "catalog", "notes", "tmp"};

}  // namespace rekindle::store
