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
                                      const std::map<functions::LayerKey, uint64_t>& layers,
                                      const std::string& function, uid_t owner) {
  CodeRoom room;
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
    for (const std::string& digest : record.layers) replaced.insert({record.owner.uid, digest});
  }
  for (const functions::FunctionRecord& record : functions) {
    if (record.name() == function) continue;
    for (const std::string& digest : record.layers) replaced.erase({record.owner.uid, digest});
    room.of_store_.code += record.own_bytes();
    if (record.owner.uid == owner) room.of_owner_.code += record.own_bytes();
  }
  for (const auto& [key, bytes] : layers) {
    if (replaced.contains(key)) continue;
    room.counted_.insert(key);
    room.of_store_.code += bytes;
    if (key.first == owner) room.of_owner_.code += bytes;
  }
  return room;
}

bool CodeRoom::Exceeds(const Use& use, uint64_t code_bytes) {
  if (use.limit == 0) return false;
  const uint64_t used = use.images + use.code;
  return used >= use.limit || code_bytes > use.limit - used;
}

absl::Status CodeRoom::CheckRevision(const functions::FunctionRecord& staged) const {
  uint64_t bytes = staged.own_bytes();
  std::set<functions::LayerKey> counted = counted_;
  for (const functions::LayerPtr& layer : staged.folder->layers()) {
    if (counted.insert({layer->owner(), layer->digest()}).second) bytes += layer->bytes();
  }
  return Check(bytes, /*all=*/true);
}

absl::Status CodeRoom::Check(uint64_t code_bytes, bool all) const {
  const std::string needs =
      absl::StrCat(function_.empty() ? "what the image needs of layers has "
                                     : absl::StrCat("the code of function '", function_, "' has "),
                   all ? "" : "more than ", FormatBytes(code_bytes), ": ");
  if (Exceeds(of_owner_, code_bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        needs, "the quota of uid ", owner_, " in the store ", path_, " is ", FormatBytes(of_owner_.limit),
        ", of which their images take ", FormatBytes(of_owner_.images), " and the code of their functions ",
        FormatBytes(of_owner_.code),
        ". Remove functions with `rekindle fn rm` or images with `rekindle rm`, or have an administrator "
        "raise the quota: `rekindle quota --owner ",
        owner_, " --max SIZE`"));
  }
  if (Exceeds(of_store_, code_bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(needs, "the store ", path_, " may take ", FormatBytes(of_store_.limit),
                     " of disk, of which images take ", FormatBytes(of_store_.images),
                     " and the code of functions ", FormatBytes(of_store_.code),
                     ". Free space with `rekindle fn rm`, or with `rekindle rm` and then an administrator's "
                     "`rekindle gc`, or have him raise the limit: `rekindle quota --store-max SIZE`"));
  }
  struct statvfs fs;
  if (high_water_percent_ == 0 || ::fstatvfs(folder_.get(), &fs) != 0) return absl::OkStatus();
  // Without what is reserved for root, as the store reckons it. With what was copied until now.
  const double used = static_cast<double>(fs.f_blocks - fs.f_bfree);
  const double percent = 100 * used / std::max(used + static_cast<double>(fs.f_bavail), 1.0);
  if (percent < high_water_percent_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(needs, "the file system of the store ", path_, " may be filled up to ",
                   high_water_percent_, " % (its high-water mark) and is ", absl::StrFormat("%.1f", percent),
                   " % full. Free space with `rekindle fn rm`, or with `rekindle rm` and then an "
                   "administrator's `rekindle "
                   "gc`, or have him move the mark: `rekindle quota --high-water PERCENT`"));
}

}  // namespace rekindle::daemon
