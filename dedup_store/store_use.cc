#include "dedup_store/store_use.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dedup_store/store_notes.h"

namespace rekindle::store {

absl::StatusOr<StoreBytes> MeasureStore(StoreCore& core, Catalog::Txn& txn, MeasuredPacks* known) {
  StoreBytes bytes;
  RK_ASSIGN_OR_RETURN(std::vector<PackRecord> packs, txn.Packs());
  RK_ASSIGN_OR_RETURN(std::vector<IndexRecord> indexes, txn.Indexes());
  for (const IndexRecord& index : indexes) bytes.metadata_bytes += index.file_bytes;
  bytes.metadata_bytes += txn.bytes_used();
  RK_ASSIGN_OR_RETURN(uint64_t notes, MeasureNotes(core));
  bytes.metadata_bytes += notes;
  for (const PackRecord& pack : packs) {
    if (pack.pages > 0) bytes.metadata_bytes += sizeof(PageTableHeader) + uint64_t{pack.pages} * 8;
    StoreBytes own;
    auto measured = known != nullptr ? known->find(pack.id) : MeasuredPacks::iterator();
    if (known != nullptr && measured != known->end()) {
      own = measured->second;
    } else {
      // Not opened: there may be tens of thousands, and who looks may do so every second.
      struct stat info;
      if (::stat(core.pack_path(pack.id).c_str(), &info) != 0) {
        if (errno == ENOENT || errno == ESTALE) continue;  // gc took it meanwhile
        return ErrnoStatus(errno, absl::StrCat("looking at ", core.pack_path(pack.id)));
      }
      const uint64_t on_disk = static_cast<uint64_t>(info.st_blocks) * 512;
      own.metadata_bytes = std::min(on_disk, pack.file_bytes - std::min(pack.file_bytes, pack.stored_bytes));
      own.pack_bytes = on_disk - own.metadata_bytes;
      if (known != nullptr) known->emplace(pack.id, own);
    }
    bytes.pack_bytes += own.pack_bytes;
    bytes.metadata_bytes += own.metadata_bytes;
  }
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
