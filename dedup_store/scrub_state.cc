#include "dedup_store/scrub_state.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "dedup_store/catalog.h"
#include "dedup_store/hashing.h"
#include "dedup_store/small_file.h"

namespace rekindle::store {

namespace {

constexpr uint64_t kMostOfState = uint64_t{256} << 20;  // with millions of damaged frames

using Json = nlohmann::ordered_json;
using Part = ScrubDamage::Part;

constexpr char kScrubFile[] = "SCRUB";
constexpr char kScrubLock[] = "SCRUB.lock";
constexpr char kScrubMagic[] = "rekindle-scrub";
constexpr uint64_t kScrubVersion = 1;
constexpr const char* kPartNames[] = {"chunk", "manifest", "record", "pack"};

std::string StatePath(const std::string& store_path) { return absl::StrCat(store_path, "/", kScrubFile); }

std::string Hex(uint64_t number) { return absl::StrCat(absl::Hex(number, absl::kZeroPad16)); }

std::string ChecksumOf(const Json& without_checksum) {
  return Hex(Checksum(without_checksum.dump(-1, ' ', false, Json::error_handler_t::replace)).lo);
}

// What a file says that may hold anything; `ok` tells whether all of it was there.
class Fields {
 public:
  Fields(const Json& json, bool* ok) : json_(json), ok_(ok) {}

  uint64_t Number(const char* key) const {
    if (const Json* value = Find(key); value != nullptr && value->is_number_unsigned())
      return value->get<uint64_t>();
    *ok_ = false;
    return 0;
  }
  uint32_t SmallNumber(const char* key) const {
    const uint64_t number = Number(key);
    if (number > UINT32_MAX) *ok_ = false;
    return static_cast<uint32_t>(number);
  }
  int64_t Time(const char* key) const { return static_cast<int64_t>(Number(key)); }
  std::string Text(const char* key) const {
    if (const Json* value = Find(key); value != nullptr && value->is_string())
      return value->get<std::string>();
    *ok_ = false;
    return "";
  }
  uint64_t Id(const char* key) const {
    uint64_t id = 0;
    if (!absl::SimpleHexAtoi(Text(key), &id)) *ok_ = false;
    return id;
  }

 private:
  const Json* Find(const char* key) const {
    auto it = json_.find(key);
    return it == json_.end() ? nullptr : &*it;
  }
  const Json& json_;
  bool* const ok_;
};

// 0: there is none.
uint64_t VersionOf(const Json& json) {
  const auto magic = json.find("magic"), version = json.find("version");
  const bool has = magic != json.end() && *magic == kScrubMagic && version != json.end();
  return has && version->is_number_unsigned() ? version->get<uint64_t>() : 0;
}

}  // namespace

std::string ScrubState::Encode() const {
  Json json;
  json["magic"] = kScrubMagic;
  json["version"] = kScrubVersion;
  json["pass_began_unix_ns"] = static_cast<uint64_t>(pass_began_unix_ns);
  json["pass_bytes"] = pass_bytes;
  json["pack"] = Hex(pack);
  json["frame"] = frame;
  json["last_began_unix_ns"] = static_cast<uint64_t>(last_began_unix_ns);
  json["last_ended_unix_ns"] = static_cast<uint64_t>(last_ended_unix_ns);
  json["last_bytes"] = last_bytes;
  json["damage"] = Json::array();
  for (const ScrubDamage& damaged : damage) {
    Json entry;
    entry["part"] = kPartNames[static_cast<size_t>(damaged.part)];
    entry["pack"] = Hex(damaged.pack);
    entry["offset"] = damaged.offset;
    entry["frame"] = damaged.frame;
    entry["first_page"] = damaged.first_page;
    entry["pages"] = damaged.pages;
    entry["found_unix_ns"] = static_cast<uint64_t>(damaged.found_unix_ns);
    entry["why"] = damaged.why;
    json["damage"].push_back(std::move(entry));
  }
  json["checksum"] = ChecksumOf(json);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<ScrubState> ScrubState::Decode(absl::string_view text) {
  const auto damaged = absl::DataLossError("it is not as it was written");
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return damaged;
  // Whatever else it says, and however it is protected.
  if (const uint64_t version = VersionOf(json); version > kScrubVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("a newer version of Rekindle has written it (its version is ", version,
                     ", this version knows ", kScrubVersion, "): use a newer Rekindle, or remove the file"));
  }
  if (!json.contains("damage") || !json["damage"].is_array()) return damaged;
  bool ok = true;
  const Fields fields(json, &ok);
  ScrubState state;
  state.pass_began_unix_ns = fields.Time("pass_began_unix_ns");
  state.pass_bytes = fields.Number("pass_bytes");
  state.pack = fields.Id("pack");
  state.frame = fields.SmallNumber("frame");
  state.last_began_unix_ns = fields.Time("last_began_unix_ns");
  state.last_ended_unix_ns = fields.Time("last_ended_unix_ns");
  state.last_bytes = fields.Number("last_bytes");
  for (const Json& each : json["damage"]) {
    if (!each.is_object()) return damaged;
    const Fields entry(each, &ok);
    const auto* part = std::find(std::begin(kPartNames), std::end(kPartNames), entry.Text("part"));
    if (part == std::end(kPartNames)) return damaged;
    state.damage.push_back({static_cast<Part>(part - std::begin(kPartNames)), entry.Id("pack"),
                            entry.Number("offset"), entry.SmallNumber("frame"),
                            entry.SmallNumber("first_page"), entry.SmallNumber("pages"),
                            entry.Time("found_unix_ns"), entry.Text("why")});
  }
  // The checksum, the version and whatever else there is are part of what would be written.
  if (!ok || state.Encode() != text) return damaged;
  return state;
}

absl::StatusOr<ScrubState> ReadScrubState(const std::string& store_path) {
  auto text = ReadSmallFile(StatePath(store_path), kMostOfState);
  if (absl::IsNotFound(text.status())) return ScrubState();
  if (!text.ok() && !absl::IsDataLoss(text.status())) return text.status();
  absl::StatusOr<ScrubState> state =
      text.ok() ? ScrubState::Decode(*text) : absl::StatusOr<ScrubState>(text.status());
  if (state.ok()) return state;
  if (absl::IsFailedPrecondition(state.status())) return Annotate(state.status(), StatePath(store_path));
  Log(LogLevel::kWarning, absl::StrCat(StatePath(store_path), ": ", state.status().message(),
                                       "; the search for damage in the store begins anew"));
  return ScrubState();
}

absl::Status WriteScrubState(const std::string& store_path, const ScrubState& state, bool durable) {
  return durable ? WriteFileAtomically(StatePath(store_path), state.Encode())
                 : ReplaceFile(StatePath(store_path), state.Encode());
}

absl::StatusOr<HeldLock> LockScrub(const std::string& store_path) {
  const std::string path = absl::StrCat(store_path, "/", kScrubLock);
  RK_ASSIGN_OR_RETURN(UniqueFd file, OpenFile(path, O_RDWR | O_CREAT, 0600));
  RK_ASSIGN_OR_RETURN(const bool locked, LockWithin(file, LOCK_EX, kForkMayTake, path));
  if (!locked) {
    return absl::UnavailableError(
        absl::StrCat("another process looks for damage in the store ", store_path, " already"));
  }
  // Of one that was killed: nobody else writes now.
  RK_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(store_path));
  for (const std::string& name : names) {
    if (absl::StartsWith(name, absl::StrCat(kScrubFile, ".tmp-"))) {
      RK_RETURN_IF_ERROR(RemoveTree(absl::StrCat(store_path, "/", name)));
    }
  }
  return HeldLock(std::move(file));
}

absl::Status DropDamageThatIsGone(const StoreCore& core, std::vector<ScrubDamage>& damage) {
  if (damage.empty()) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core.catalog().Read());
  std::vector<ScrubDamage> left;
  for (ScrubDamage& each : damage) {
    RK_ASSIGN_OR_RETURN(std::optional<PackRecord> pack, txn.FindPack(each.pack));
    if (!pack) continue;
    RK_ASSIGN_OR_RETURN(std::optional<DeadRecord> dead, txn.FindDead(each.pack));
    // The bit behind the frames is that of the manifest and the record.
    const uint32_t bit = each.part == Part::kChunk ? each.frame : pack->frames;
    if (each.part != Part::kPack && dead && bit < dead->dead.size() && dead->dead[bit]) continue;
    left.push_back(std::move(each));
  }
  damage = std::move(left);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> ScrubBytesLeft(const StoreCore& core, const ScrubState& state) {
  RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core.catalog().Read());
  RK_ASSIGN_OR_RETURN(std::vector<PackRecord> packs, txn.Packs());
  uint64_t left = 0;
  for (const PackRecord& pack : packs) {
    if (pack.id > state.pack) left += pack.stored_bytes;
    if (pack.id != state.pack || state.frame >= pack.frames) continue;
    left += static_cast<uint64_t>(static_cast<double>(pack.stored_bytes) * (pack.frames - state.frame) /
                                  pack.frames);
  }
  return left;
}

namespace {

absl::StatusOr<ScrubState> ReadPresentState(const StoreCore& core) {
  RK_ASSIGN_OR_RETURN(ScrubState state, ReadScrubState(core.path()));
  RK_RETURN_IF_ERROR(DropDamageThatIsGone(core, state.damage));
  return state;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FindKnownDamagedImages(StoreCore& core) {
  RK_ASSIGN_OR_RETURN(const ScrubState state, ReadPresentState(core));
  return core.damaged_images().Find(core, state.damage);
}

absl::StatusOr<ScrubStatus> FindScrubStatus(StoreCore& core) {
  ScrubStatus status;
  RK_ASSIGN_OR_RETURN(status.state, ReadPresentState(core));
  if (status.state.pass_began_unix_ns != 0) {
    RK_ASSIGN_OR_RETURN(status.pass_bytes_left, ScrubBytesLeft(core, status.state));
  }
  RK_ASSIGN_OR_RETURN(status.damaged_images, core.damaged_images().Find(core, status.state.damage));
  return status;
}

}  // namespace rekindle::store
