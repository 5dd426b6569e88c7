#include "dedup_store/store_use.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "dedup_store/store_core.h"
#include "dedup_store/store_notes.h"

namespace rekindle::store {

namespace {

// ZFS tells some seconds later what was written; two changes of a folder may get the same time, and another
// node's clock may differ.
constexpr absl::Duration kSettledAfter = absl::Minutes(1);

bool IsSettled(absl::Time changed) { return absl::Now() - changed > kSettledAfter; }

}  // namespace

absl::StatusOr<StoreBytes> StoreUse::Measure(StoreCore& core, Catalog::Txn& txn, PackSizes* sizes) {
  StoreBytes bytes;
  RK_ASSIGN_OR_RETURN(const std::vector<PackRecord> packs, txn.Packs());
  RK_ASSIGN_OR_RETURN(const std::vector<IndexRecord> indexes, txn.Indexes());
  for (const IndexRecord& index : indexes) bytes.metadata_bytes += index.file_bytes;
  bytes.metadata_bytes += txn.bytes_used();
  const auto add = [&bytes](const StoreBytes& of_one) {
    bytes.pack_bytes += of_one.pack_bytes;
    bytes.metadata_bytes += of_one.metadata_bytes;
  };
  for (const PackRecord& pack : packs) {
    if (pack.pages > 0) bytes.metadata_bytes += sizeof(PageTableHeader) + uint64_t{pack.pages} * 8;
  }
  std::vector<const PackRecord*> unknown;
  {
    absl::MutexLock lock(&mutex_);
    std::map<uint64_t, KnownPack> known = std::exchange(packs_, {});
    for (const PackRecord& pack : packs) {
      const auto before = known.find(pack.id);
      if (before != known.end() && before->second.dead == txn.SharedDead(pack.id)) {
        add(before->second.bytes);
        packs_.emplace_hint(packs_.end(), pack.id, std::move(before->second));
      } else if (const auto size = sizes ? sizes->find(pack.id) : PackSizes::iterator();
                 sizes && size != sizes->end()) {
        add(size->second);
      } else {
        unknown.push_back(&pack);
      }
    }
  }
  // Without the lock: a file server may take its time.
  std::map<uint64_t, KnownPack> found;
  for (const PackRecord* const pack : unknown) {
    // Not opened: there may be tens of thousands.
    struct stat info;
    if (::stat(core.pack_path(pack->id).c_str(), &info) != 0) {
      if (errno == ENOENT || errno == ESTALE) continue;  // gc took it meanwhile
      return ErrnoStatus(errno, absl::StrCat("looking at ", core.pack_path(pack->id)));
    }
    const uint64_t on_disk = static_cast<uint64_t>(info.st_blocks) * 512;
    KnownPack now;
    now.dead = txn.SharedDead(pack->id);
    now.bytes.metadata_bytes =
        std::min(on_disk, pack->file_bytes - std::min(pack->file_bytes, pack->stored_bytes));
    now.bytes.pack_bytes = on_disk - now.bytes.metadata_bytes;
    add(now.bytes);
    if (sizes) sizes->emplace(pack->id, now.bytes);
    // While gc frees parts of it, and until a gc has noted that it did, it changes.
    if ((now.dead == nullptr || now.dead->given_back) && IsSettled(absl::TimeFromTimespec(info.st_ctim)))
      found.emplace_hint(found.end(), pack->id, std::move(now));
  }
  absl::MutexLock lock(&mutex_);
  packs_.merge(found);
  return bytes;
}

absl::StatusOr<uint64_t> StoreUse::MeasureNotes(StoreCore& core) {
  // A note is replaced under its name, not changed, so the folder's time tells of each change.
  struct stat folder;
  const bool there = ::stat(NotesFolder(core).c_str(), &folder) == 0;
  const absl::Time changed = there ? absl::TimeFromTimespec(folder.st_mtim) : absl::InfinitePast();
  {
    absl::MutexLock lock(&mutex_);
    if (there && changed == notes_changed_) return notes_bytes_;
  }
  const bool settled = there && IsSettled(changed);
  RK_ASSIGN_OR_RETURN(const uint64_t bytes, store::MeasureNotes(core));
  absl::MutexLock lock(&mutex_);
  notes_changed_ = settled ? changed : absl::InfinitePast();
  notes_bytes_ = bytes;
  return bytes;
}

absl::StatusOr<StoreBytes> StoreUse::MeasureAll(StoreCore& core, Catalog::Txn& txn) {
  RK_ASSIGN_OR_RETURN(StoreBytes bytes, Measure(core, txn));
  RK_ASSIGN_OR_RETURN(const uint64_t notes, MeasureNotes(core));
  bytes.metadata_bytes += notes;
  return bytes;
}

absl::StatusOr<FileSystemUse> MeasureFileSystem(const std::string& path) {
  struct statvfs fs;
  if (statvfs(path.c_str(), &fs) != 0) {
    return ErrnoStatus(errno, absl::StrCat("looking at the file system of ", path));
  }
  FileSystemUse use;
  use.used_bytes = uint64_t{fs.f_blocks - fs.f_bfree} * fs.f_frsize;
  use.free_bytes = uint64_t{fs.f_bavail} * fs.f_frsize;
  use.total_bytes = use.used_bytes + use.free_bytes;
  return use;
}

}  // namespace rekindle::store
