#include "dedup_store/format.h"

#include <openssl/rand.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace rekindle::store {

std::string PackFileName(uint64_t pack_id) { return absl::StrFormat("%016x.pack", pack_id); }
std::string IndexFileName(uint64_t index_id) { return absl::StrFormat("%016x.idx", index_id); }

uint64_t IdOfFileName(absl::string_view name, absl::string_view suffix) {
  uint64_t id = 0;
  if (name.size() != 16 + suffix.size() || !absl::EndsWith(name, suffix)) return 0;
  return absl::SimpleHexAtoi(name.substr(0, 16), &id) ? id : 0;
}

std::vector<uint32_t> BuildDigestTable(const std::vector<Hash128>& digests) {
  const auto pages = static_cast<uint32_t>(digests.size());
  const DigestTableShape shape(pages);
  std::vector<uint32_t> table(shape.slots);
  for (uint32_t page = 0; page < pages; ++page) {
    uint64_t slot = shape.SlotOf(digests[page]);
    while (table[slot] != 0) slot = slot + 1 == shape.slots ? 0 : slot + 1;
    table[slot] = shape.Value(digests[page], page);
  }
  return table;
}

uint64_t NewFileId() {
  uint64_t id = 0;
  while (id == 0) {
    if (RAND_bytes(reinterpret_cast<unsigned char*>(&id), sizeof id) != 1) abort();
  }
  return id;
}

}  // namespace rekindle::store
