#include "dedup_store/limits.h"

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/human_units.h"
#include "dedup_store/hashing.h"

namespace rekindle::store {

namespace {

using Json = nlohmann::ordered_json;

constexpr char kLimitsMagic[] = "rekindle-limits";
constexpr uint64_t kLimitsVersion = 1;

std::string LimitsChecksum(const Json& without_checksum) {
  return absl::StrCat(absl::Hex(Checksum(without_checksum.dump()).lo, absl::kZeroPad16));
}

bool Exceeds(LimitChecks::Stage stage, uint64_t limit, uint64_t used, uint64_t needed) {
  if (stage == LimitChecks::Stage::kBegin) return used >= limit;
  return used > limit || needed > limit - used;
}

}  // namespace

std::string StoreLimits::Encode() const {
  Json json;
  json["magic"] = kLimitsMagic;
  json["version"] = kLimitsVersion;
  json["owners"] = Json::object();
  for (const auto& [uid, bytes] : owner_max_bytes) json["owners"][absl::StrCat(uid)] = bytes;
  json["store_max_bytes"] = store_max_bytes;
  json["high_water_percent"] = high_water_percent;
  json["checksum"] = LimitsChecksum(json);
  return json.dump(2) + "\n";
}

absl::StatusOr<StoreLimits> StoreLimits::Decode(absl::string_view text) {
  const auto damaged = absl::DataLossError("it is not as it was written");
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("checksum") || !json["checksum"].is_string()) return damaged;
  const std::string checksum = json["checksum"].get<std::string>();
  json.erase("checksum");
  if (checksum != LimitsChecksum(json)) return damaged;
  auto number_of = [&](const char* key) -> std::optional<uint64_t> {
    if (!json.contains(key) || !json[key].is_number_unsigned()) return std::nullopt;
    return json[key].get<uint64_t>();
  };
  const std::optional<uint64_t> version = number_of("version");
  if (version && *version > kLimitsVersion) {
    return absl::FailedPreconditionError(absl::StrCat("it has version ", *version, ", newer than ",
                                                      kLimitsVersion,
                                                      ", the newest that this Rekindle knows. Use a newer "
                                                      "Rekindle."));
  }
  StoreLimits limits;
  const std::optional<uint64_t> store_max = number_of("store_max_bytes");
  const std::optional<uint64_t> high_water = number_of("high_water_percent");
  if (!store_max || !high_water || *high_water > 100 || !json.contains("owners") ||
      !json["owners"].is_object()) {
    return damaged;
  }
  limits.store_max_bytes = *store_max;
  limits.high_water_percent = static_cast<uint32_t>(*high_water);
  for (const auto& [key, value] : json["owners"].items()) {
    uint32_t uid = 0;
    if (!absl::SimpleAtoi(key, &uid) || !value.is_number_unsigned()) return damaged;
    limits.owner_max_bytes[uid] = value.get<uint64_t>();
  }
  // Whatever else was changed about the file, it is not the one that was written.
  if (limits.Encode() != text) return damaged;
  return limits;
}

absl::Status Apply(const LimitsChange& change, StoreLimits& limits) {
  if (change.high_water_percent && *change.high_water_percent > 100) {
    return absl::InvalidArgumentError(
        absl::StrCat("the high-water mark is a percentage of the file system, 1 to 100, not ",
                     *change.high_water_percent));
  }
  if (change.high_water_percent) limits.high_water_percent = *change.high_water_percent;
  if (change.store_max_bytes) limits.store_max_bytes = *change.store_max_bytes;
  if (change.owner) {
    limits.owner_max_bytes.erase(change.owner->first);
    if (change.owner->second != 0) limits.owner_max_bytes.insert(*change.owner);
  }
  return absl::OkStatus();
}

std::string LimitChecks::Need(Stage stage, uint64_t bytes) const {
  switch (stage) {
    case Stage::kBegin:
      return "already. Nothing was written";
    case Stage::kWriting:
      return absl::StrCat("and this image needs more than ", FormatBytes(bytes), ". Nothing of it is left");
    case Stage::kCommit:
      break;
  }
  return absl::StrCat("and this image needs ", FormatBytes(bytes), ". Nothing of it is left");
}

absl::Status LimitChecks::Owner(Stage stage, uint64_t used_bytes, uint64_t images, uint64_t needed_bytes,
                                uint64_t beside) const {
  auto limit = limits_.owner_max_bytes.find(owner_);
  if (limit == limits_.owner_max_bytes.end()) return absl::OkStatus();
  if (!Exceeds(stage, limit->second, used_bytes + beside, needed_bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the quota of uid ", owner_, " in the store ", store_path_, " is ", FormatBytes(limit->second),
      ", and ", images, images == 1 ? " image takes " : " images take ", FormatBytes(used_bytes),
      beside == 0 ? "" : absl::StrCat(" and the code of functions ", FormatBytes(beside)), " of it, ",
      Need(stage, needed_bytes), ". Remove images with `rekindle rm` or `rekindle prune`, ",
      beside == 0 ? "" : "functions with `rekindle fn rm`, ",
      "or have an administrator raise the quota: "
      "`rekindle quota --owner ",
      owner_, " --max SIZE`"));
}

absl::Status LimitChecks::Store(Stage stage, uint64_t used_bytes, uint64_t needed_bytes,
                                uint64_t beside) const {
  if (!store_is_limited()) return absl::OkStatus();
  if (!Exceeds(stage, limits_.store_max_bytes, used_bytes + beside, needed_bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the store ", store_path_, " may take ", FormatBytes(limits_.store_max_bytes), " of disk and takes ",
      FormatBytes(used_bytes),
      beside == 0 ? "" : absl::StrCat(" and ", FormatBytes(beside), " of functions' code"), ", ",
      Need(stage, needed_bytes), " (owner: uid ", owner_,
      "). Free space with `rekindle rm` or `rekindle prune` and then an administrator's `rekindle gc`, or "
      "have him raise the limit: `rekindle quota --store-max SIZE`"));
}

absl::Status LimitChecks::HighWater(Stage stage, const FileSystemUse& use, uint64_t needed_bytes) const {
  if (!has_high_water() || use.total_bytes == 0) return absl::OkStatus();
  const auto mark = static_cast<uint64_t>(static_cast<double>(use.total_bytes) *
                                          (static_cast<double>(limits_.high_water_percent) / 100.0));
  if (!Exceeds(stage, mark, use.used_bytes, needed_bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the file system of the store ", store_path_, " may be filled up to ", limits_.high_water_percent,
      " % (its high-water mark) of ", FormatBytes(use.total_bytes), " and is ",
      absl::StrFormat("%.1f",
                      100.0 * static_cast<double>(use.used_bytes) / static_cast<double>(use.total_bytes)),
      " % full (free: ", FormatBytes(use.free_bytes), "), ", Need(stage, needed_bytes), " (owner: uid ",
      owner_,
      "). Free space with `rekindle rm` or `rekindle prune` and then an administrator's `rekindle gc`, or "
      "have him move the mark: `rekindle quota --high-water PERCENT`"));
}

}  // namespace rekindle::store
