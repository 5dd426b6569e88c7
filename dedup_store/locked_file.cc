#include "dedup_store/locked_file.h"

#include "base/status.h"

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

}  // namespace rekindle::store
