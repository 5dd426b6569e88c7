#include "restore/hot_list.h"

#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "dedup_store/coding.h"
#include "dedup_store/hashing.h"
#include "dedup_store/small_file.h"
#include "dedup_store/store.h"
#include "restore/frame_cache.h"

namespace rekindle::restore {
namespace {

constexpr char kFileName[] = "hot-frames";
constexpr char kHotListMagic[] = {'R', 'K', 'H', 'O', 'T', '\r', '\n', '\0'};
constexpr uint64_t kHotListVersion = 1;
constexpr size_t kMostNameBytes = 100;
constexpr uint64_t kMostBytes = uint64_t{1} << 30;

std::string PathIn(const std::string& store) { return absl::StrCat(store, "/", kFileName); }

std::string ChecksumOf(absl::string_view bytes) {
  const store::Hash128 sum = store::Checksum(bytes);
  return std::string(reinterpret_cast<const char*>(&sum), sizeof sum);
}

}  // namespace

// docs/store-format.md describes it.
std::string HotList::Encode() const {
  store::Encoder encoder;
  encoder.Raw(kHotListMagic, sizeof kHotListMagic);
  encoder.Varint(kHotListVersion);
  encoder.Varint(images.size());
  for (const std::string& image : images) encoder.String(image);
  std::string bytes = absl::StrCat(encoder.Take(), EncodeFrameList(frames));
  return absl::StrCat(bytes, ChecksumOf(bytes));
}

absl::StatusOr<HotList> HotList::Decode(absl::string_view bytes) {
  const auto damaged = absl::DataLossError("the list of hot frames is damaged");
  if (bytes.size() < sizeof kHotListMagic + sizeof(store::Hash128)) return damaged;
  const absl::string_view content = bytes.substr(0, bytes.size() - sizeof(store::Hash128));
  if (bytes.substr(content.size()) != ChecksumOf(content)) return damaged;
  store::Decoder decoder(content);
  if (decoder.View(sizeof kHotListMagic) != absl::string_view(kHotListMagic, sizeof kHotListMagic))
    return damaged;
  if (decoder.Varint() != kHotListVersion) {
    return absl::FailedPreconditionError("the list of hot frames is of a newer Rekindle");
  }
  HotList list;
  const uint64_t count = decoder.Varint();
  if (!decoder.ok() || count > decoder.remaining()) return damaged;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t size = decoder.Varint();
    if (size == 0 || size > kMostNameBytes) return damaged;
    list.images.emplace_back(decoder.View(size));
    if (!decoder.ok()) return damaged;
  }
  RK_ASSIGN_OR_RETURN(list.frames, DecodeFrameList(content.substr(content.size() - decoder.remaining())));
  return list;
}

absl::StatusOr<HotList> ReadHotList(const std::string& store) {
  RK_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(store));
  for (const std::string& name : names) {
    if (absl::StartsWith(name, absl::StrCat(kFileName, "."))) {
      ::unlink(absl::StrCat(store, "/", name).c_str());
    }
  }
  RK_ASSIGN_OR_RETURN(std::string bytes, store::ReadSmallFile(PathIn(store), kMostBytes));
  return HotList::Decode(bytes);
}

bool HasHotList(const std::string& store) { return PathExists(PathIn(store)); }

absl::Status WriteHotList(const std::string& store, const HotList& list) {
  // Nothing is put where it is to be mounted again.
  if (!PathExists(absl::StrCat(store, "/packs"))) return store::StoreIsAway(store);
  return WriteFileAtomically(PathIn(store), list.Encode());
}

}  // namespace rekindle::restore
