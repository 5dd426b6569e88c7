#include "dedup_store/locked_file.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dedup_store/format.h"

namespace rekindle::store {

absl::StatusOr<std::unique_ptr<BlockFile>> CreateLocked(BlockIo* io, bool direct,
                                                        const std::function<std::string()>& path) {
  for (;;) {
    const std::string name = path();
    RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file,
                        direct ? io->Create(name) : io->CreateBuffered(name));
    absl::Status locked = file->Lock(LockMode::kExclusive, true).status();
    if (locked.ok()) locked = file->Revalidate();
    absl::StatusOr<bool> linked = locked.ok() ? file->IsLinked() : locked;
    if (!linked.ok()) {
      (void)io->Unlink(name);
      return linked.status();
    }
    if (*linked) return file;
  }
}

absl::Status WriteProbe(BlockIo* io, const std::string& store_path) {
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<BlockFile> file, CreateLocked(io, /*direct=*/false, [&] {
                        return absl::StrCat(store_path, "/tmp/probe.", absl::Hex(NewFileId()));
                      }));
  const std::byte bytes[512] = {std::byte{1}};
  absl::Status status = file->WriteAt(0, bytes);
  if (status.ok()) status = file->Sync();
  const absl::Status removed = io->Unlink(file->path());
  return status.ok() ? removed : status;
}

}  // namespace rekindle::store
