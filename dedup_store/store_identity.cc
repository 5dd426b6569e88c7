#include "dedup_store/store_identity.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/random_bytes.h"
#include "base/status.h"
#include "dedup_store/coding.h"
#include "dedup_store/small_file.h"

namespace rekindle::store {

namespace {

constexpr char kFormatMagic[] = "rekindle-store";

template <size_t N>
std::string Hex(const std::array<uint8_t, N>& bytes) {
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(bytes.data()), N));
}

template <size_t N>
bool FromHex(const std::string& hex, std::array<uint8_t, N>& out) {
  if (hex.size() != 2 * N ||
      !std::all_of(hex.begin(), hex.end(), [](char c) { return absl::ascii_isxdigit(c); })) {
    return false;
  }
  std::string bytes = BytesOfHex(hex);
  std::copy(bytes.begin(), bytes.end(), out.begin());
  return true;
}

std::string FormatChecksum(const std::string& uuid, const std::string& seed, uint64_t version) {
  return absl::StrCat(absl::Hex(Checksum(absl::StrCat(uuid, "/", seed, "/", version)).lo, absl::kZeroPad16));
}

std::string Render(const StoreIdentity& identity) {
  nlohmann::ordered_json json;
  json["magic"] = kFormatMagic;
  json["version"] = kFormatVersion;
  json["uuid"] = Hex(identity.uuid);
  json["seed"] = Hex(identity.seed);
  json["checksum"] = FormatChecksum(Hex(identity.uuid), Hex(identity.seed), kFormatVersion);
  return json.dump(2) + "\n";
}

// As the first pack that is whole tells.
std::optional<StoreIdentity> IdentityOfPacks(const std::string& store_path) {
  const std::string folder = store_path + "/packs";
  auto names = ListDirectory(folder);
  if (!names.ok()) return std::nullopt;
  for (const std::string& name : *names) {
    const UniqueFd fd(OpenOwnFile(absl::StrCat(folder, "/", name), O_RDONLY));
    PackHeader header;
    if (!fd.valid() || ::pread(fd.get(), &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header) ||
        memcmp(header.magic, kPackMagic, sizeof header.magic) != 0 || header.version != kFormatVersion ||
        !(header.checksum == Checksum(&header, offsetof(PackHeader, checksum)))) {
      continue;
    }
    StoreIdentity identity;
    memcpy(identity.uuid.data(), header.store_uuid, identity.uuid.size());
    memcpy(identity.seed.data(), header.seed, identity.seed.size());
    identity.problem =
        absl::StrCat("the file ", FormatPath(store_path), " is damaged or missing; pack ", name,
                     " tells what was in it, and `rekindle fsck --repair` writes it again");
    return identity;
  }
  return std::nullopt;
}

struct Told {
  StoreIdentity identity;
  std::string magic;
  uint64_t version = 0;
  bool sound = false;  // it is as it was written
};
Told TellOf(const std::string& format) {
  const auto json = nlohmann::json::parse(format, nullptr, /*allow_exceptions=*/false);
  const auto string_of = [&](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_string() ? json[key].get<std::string>()
                                                                           : std::string();
  };
  const std::string uuid = string_of("uuid"), seed = string_of("seed");
  Told told;
  told.magic = string_of("magic");
  if (json.is_object() && json.contains("version") && json["version"].is_number_unsigned()) {
    told.version = json["version"].get<uint64_t>();
  }
  told.sound = string_of("checksum") == FormatChecksum(uuid, seed, told.version) &&
               FromHex(uuid, told.identity.uuid) && FromHex(seed, told.identity.seed);
  return told;
}

}  // namespace

std::string IdOf(const StoreIdentity& identity) { return Hex(identity.uuid); }

std::string FormatPath(const std::string& store_path) { return store_path + "/FORMAT"; }

absl::Status NotAStore(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(path, " is not a Rekindle store: ", why,
                                                    ". Name another folder with --store or REKINDLE_STORE."));
}

absl::StatusOr<StoreUuid> ReadUuid(const std::string& store_path) {
  RK_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(FormatPath(store_path)));
  const Told told = TellOf(text);
  if (!told.sound) return absl::DataLossError(absl::StrCat(FormatPath(store_path), " is damaged"));
  return told.identity.uuid;
}

absl::StatusOr<StoreIdentity> ReadIdentity(const std::string& store_path) {
  auto text = ReadSmallFile(FormatPath(store_path));
  if (absl::IsPermissionDenied(text.status())) {
    return absl::PermissionDeniedError(
        absl::StrCat(text.status().message(), ": the store is another user's: use its daemon, or sudo"));
  }
  if (!text.ok() && !absl::IsNotFound(text.status()) && !absl::IsDataLoss(text.status()))
    return text.status();
  const auto& [identity, magic, version, sound] = TellOf(text.ok() ? *text : "");
  if (sound && version == kFormatVersion && *text == Render(identity)) return identity;
  if (sound && version > kFormatVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the store ", store_path, " has format ", version, ", newer than ", kFormatVersion,
                     ", the newest that this Rekindle knows. Use a newer Rekindle."));
  }
  if (sound && version < kFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the store ", store_path, " has format ", version, ", of a preview of Rekindle; this one knows ",
        kFormatVersion, ". Export its images with that preview and import them into a new store."));
  }
  if (auto from_pack = IdentityOfPacks(store_path)) return *std::move(from_pack);
  if (absl::IsNotFound(text.status())) return NotAStore(store_path, "it has no file FORMAT");
  RK_RETURN_IF_ERROR(text.status());
  if (magic != kFormatMagic) return NotAStore(store_path, "its file FORMAT is not one of a store");
  return absl::DataLossError(
      absl::StrCat(FormatPath(store_path),
                   " is damaged, and there is no pack whose header could tell what was in it. Nothing is "
                   "stored here: remove the folder, and the store is made again."));
}

StoreIdentity NewIdentity() {
  StoreIdentity identity;
  FillWithRandomBytes(identity.uuid.data(), identity.uuid.size());
  FillWithRandomBytes(identity.seed.data(), identity.seed.size());
  return identity;
}

absl::Status WriteIdentity(const std::string& store_path, const StoreIdentity& identity) {
  return WriteFileAtomically(FormatPath(store_path), Render(identity));
}

absl::Status WriteFirstIdentity(const std::string& store_path, const StoreIdentity& identity) {
  const std::string path = FormatPath(store_path);
  uint64_t number = 0;
  FillWithRandomBytes(&number, sizeof number);
  const std::string temporary =
      absl::StrCat(store_path, "/", kFirstIdentityMark, absl::Hex(number, absl::kZeroPad16));
  RK_RETURN_IF_ERROR(WriteFileAtomically(temporary, Render(identity)));
  // A link to a name that is taken is refused, between nodes too; a rename would replace what is there.
  const int error = ::link(temporary.c_str(), path.c_str()) == 0 ? 0 : errno;
  (void)::unlink(temporary.c_str());
  // Another was first; its gc may have taken ours for what was left behind.
  if (error == EEXIST || (error == ENOENT && PathExists(path))) return absl::OkStatus();
  // File systems without hard links, such as exFAT and some of FUSE.
  if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS) return WriteIdentity(store_path, identity);
  if (error != 0) return ErrnoStatus(error, absl::StrCat("making ", path));
  return SyncFolder(store_path);
}

}  // namespace rekindle::store
