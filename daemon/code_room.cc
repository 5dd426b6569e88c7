#include "daemon/code_room.h"

#include <fcntl.h>
#include <sys/statvfs.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/status.h"
#include "dedup_store/owner_use.h"

namespace rekindle::daemon {

absl::StatusOr<CodeRoom> CodeRoom::Of(const store::Store& store, const std::string& path,
                                      const std::vector<functions::FunctionRecord>& functions,
                                      std::shared_ptr<const functions::CodeLedger> ledger,
                                      const std::map<functions::LayerKey, uint64_t>& layers,
                                      const std::string& function, uid_t owner) {
  CodeRoom room;
  room.ledger_ = std::move(ledger);
  room.path_ = path;
  room.function_ = function;
  room.owner_ = owner;
  RK_ASSIGN_OR_RETURN(room.folder_, OpenFile(path, O_RDONLY | O_DIRECTORY));
  RK_ASSIGN_OR_RETURN(const store::StoreLimits limits, store.Limits());
  room.high_water_percent_ = limits.high_water_percent;
  room.of_store_.limit = limits.store_max_bytes;
  if (auto found = limits.owner_max_bytes.find(owner); found != limits.owner_max_bytes.end())
    room.of_owner_.limit = found->second;
  if (room.of_store_.limit != 0) {
    RK_ASSIGN_OR_RETURN(const store::StoreStats stats, store.Stats());
    room.of_store_.images = stats.pack_bytes + stats.metadata_bytes;
  }
  if (room.of_owner_.limit != 0) {
    RK_ASSIGN_OR_RETURN(auto owners, store::MeasureOwners(store));
    room.of_owner_.images = owners[owner].bytes;
  }
  std::set<functions::LayerKey> replaced;
  for (const functions::FunctionRecord& record : functions) {
    if (record.name() != function) continue;
    if (record.folder != nullptr && record.owner.uid == owner) room.replaced_bytes_ = record.own_bytes();
    for (const std::string& digest : record.layers) replaced.insert({record.owner.uid, digest});
  }
  for (const functions::FunctionRecord& record : functions) {
    if (record.name() == function) continue;
    for (const std::string& digest : record.layers) replaced.erase({record.owner.uid, digest});
  }
  for (const auto& [key, bytes] : layers) {
    if (replaced.contains(key)) continue;
    room.counted_.insert(key);
    room.of_store_.layers += bytes;
    if (key.first == owner) room.of_owner_.layers += bytes;
  }
  return room;
}

uint64_t CodeRoom::OtherCode(const Use& use, std::optional<uid_t> owner, uint64_t in_ledger) const {
  const uint64_t in_all = ledger_->Of(owner);
  return use.layers + in_all - std::min(in_all, replaced_bytes_ + in_ledger);
}

bool CodeRoom::Exceeds(const Use& use, uint64_t code, uint64_t code_bytes) {
  if (use.limit == 0) return false;
  const uint64_t used = use.images + code;
  return used >= use.limit || code_bytes > use.limit - used;
}

absl::Status CodeRoom::CheckRevision(const functions::FunctionRecord& staged) const {
  const uint64_t own = staged.own_bytes();
  uint64_t bytes = own;
  std::set<functions::LayerKey> counted = counted_;
  for (const functions::LayerPtr& layer : staged.folder->layers()) {
    if (counted.insert({layer->owner(), layer->digest()}).second) bytes += layer->bytes();
  }
  return Check(bytes, own, /*all=*/true);
}

absl::Status CodeRoom::Check(uint64_t code_bytes, uint64_t in_ledger, bool all) const {
  const uint64_t of_owner = OtherCode(of_owner_, owner_, in_ledger);
  const uint64_t of_store = OtherCode(of_store_, std::nullopt, in_ledger);
  const std::string what = function_.empty() ? std::string("what the image needs of layers")
                                             : absl::StrCat("the code of function '", function_, "'");
  const std::string needs =
      code_bytes == 0 ? absl::StrCat("there is no room for ", what, ": ")
                      : absl::StrCat(what, " has ", all ? "" : "more than ", FormatBytes(code_bytes), ": ");
  if (Exceeds(of_owner_, of_owner, code_bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        needs, "the quota of uid ", owner_, " in the store ", path_, " is ", FormatBytes(of_owner_.limit),
        ", of which their images take ", FormatBytes(of_owner_.images), " and the code of their functions ",
        FormatBytes(of_owner),
        ", with what instances of replaced ones still run from. Remove functions with `rekindle fn rm` or "
        "images with `rekindle rm`, or have an administrator "
        "raise the quota: `rekindle quota --owner ",
        owner_, " --max SIZE`"));
  }
  if (Exceeds(of_store_, of_store, code_bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(needs, "the store ", path_, " may take ", FormatBytes(of_store_.limit),
                     " of disk, of which images take ", FormatBytes(of_store_.images),
                     " and the code of functions ", FormatBytes(of_store),
                     ". Free space with `rekindle fn rm`, or with `rekindle rm` and then an administrator's "
                     "`rekindle gc`, or have him raise the limit: `rekindle quota --store-max SIZE`"));
  }
  struct statvfs fs;
  if (high_water_percent_ == 0 || ::fstatvfs(folder_.get(), &fs) != 0) return absl::OkStatus();
  // Without what is reserved for root, as the store reckons it. With what was copied until now.
  const double used = static_cast<double>(fs.f_blocks - fs.f_bfree);
  const double percent = 100 * used / std::max(used + static_cast<double>(fs.f_bavail), 1.0);
  // Some have no fixed number of these.
  const double files = static_cast<double>(fs.f_files - fs.f_ffree);
  const double files_percent =
      fs.f_files == 0 ? 0 : 100 * files / std::max(files + static_cast<double>(fs.f_favail), 1.0);
  const bool too_full = percent >= high_water_percent_;
  if (!too_full && files_percent < high_water_percent_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(needs, "the file system of the store ", path_, " may be filled up to ",
                   high_water_percent_, " % (its high-water mark) and ",
                   too_full ? absl::StrFormat("is %.1f %% full", percent)
                            : absl::StrFormat("has %.1f %% of its files (inodes)", files_percent),
                   ". Free space with `rekindle fn rm`, or with `rekindle rm` and then an "
                   "administrator's `rekindle "
                   "gc`, or have him move the mark: `rekindle quota --high-water PERCENT`"));
}

}  // namespace rekindle::daemon
