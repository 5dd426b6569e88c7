#include "dedup_store/format.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/random_bytes.h"

namespace rekindle::store {

std::string PackFileName(uint64_t pack_id) { return absl::StrFormat("%016x.pack", pack_id); }
std::string PageTableFileName(uint64_t pack_id) { return absl::StrFormat("%016x.pages", pack_id); }
std::string IndexFileName(uint64_t index_id) { return absl::StrFormat("%016x.idx", index_id); }

uint64_t IdOfFileName(absl::string_view name, absl::string_view suffix) {
  uint64_t id = 0;
  if (name.size() != 16 + suffix.size() || !absl::EndsWith(name, suffix)) return 0;
  return absl::SimpleHexAtoi(name.substr(0, 16), &id) ? id : 0;
}

uint32_t FrameOfPage(absl::Span<const FrameEntry> frames, uint32_t page) {
  auto it = std::upper_bound(frames.begin(), frames.end(), page,
                             [](uint32_t p, const FrameEntry& f) { return p < f.first_page; });
  return static_cast<uint32_t>(it - frames.begin()) - 1;
}

Hash128 DigestOfFrame(Sha256& sha, const Fingerprinter& fingerprinter, Codec codec,
                      absl::Span<const std::byte> stored) {
  if (codec == Codec::kRawKeyed) return fingerprinter.Wide(stored.data(), stored.size());
  sha.Update(stored.data(), stored.size());
  return sha.Truncated(&codec, sizeof codec);
}

PageIdentity IdentityOfPage(absl::Span<const FrameEntry> frames, uint32_t page) {
  const FrameEntry& frame = frames[FrameOfPage(frames, page)];
  PageIdentity identity{{}, page - frame.first_page};
  memcpy(&identity.frame, frame.digest, sizeof identity.frame);
  return identity;
}

uint64_t NewFileId() {
  uint64_t id = 0;
  while (id == 0) FillWithRandomBytes(&id, sizeof id);
  return id;
}

}  // namespace rekindle::store
