// What the catalog says at one moment, in memory. A copy costs microseconds and shares what it can with the
// original. Thread-safe as long as nobody changes it; a state that others may read is never changed again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dedup_store/catalog.h"
#include "dedup_store/coding.h"
#include "dedup_store/cow_map.h"

namespace rekindle::store {

// The operations that transactions consist of; docs/store-format.md lists what follows each number.
enum class CatalogChange : uint8_t {
  kPutImage = 1,
  kDeleteImage = 2,
  kNextImageId = 3,
  kPutPack = 4,
  kDeletePack = 5,
  kPutDead = 6,
  kPutIndex = 7,
  kDeleteIndex = 8,
};

void AppendChange(CatalogChange kind, absl::string_view body, Encoder& out);
std::string EncodeId(uint64_t id);

class CatalogState {
 public:
  CatalogState();
  CatalogState(const CatalogState& other);
  CatalogState& operator=(const CatalogState&) = delete;

  // DataLoss: `body` is not what belongs to a change of this kind.
  absl::Status Apply(CatalogChange kind, absl::string_view body);
  // All changes of one transaction.
  absl::Status Replay(absl::string_view changes);
  // Gives the changes that make this state out of an empty one, as several transactions.
  void Describe(const std::function<void(absl::string_view changes)>& transaction) const;
  uint64_t described_bytes() const { return described_bytes_; }  // about

  struct Image {
    ImageRecordPtr record;
    uint32_t encoded_bytes = 0;
  };
  struct Dead {
    std::shared_ptr<const DeadRecord> record;
    uint32_t encoded_bytes = 0;
  };
  using DigestKey = std::pair<std::string, uint64_t>;  // the bytes of the digest, image id

  const CowMap<uint64_t, Image>& images() const { return images_; }
  const CowMap<std::string, uint64_t>& references() const { return references_; }
  const CowMap<DigestKey, char>& digests() const { return digests_; }
  const CowMap<uint64_t, PackRecord>& packs() const { return packs_; }
  const CowMap<uint64_t, Dead>& dead() const { return dead_; }
  const CowMap<uint64_t, IndexRecord>& indexes() const { return indexes_; }
  uint64_t next_image_id() const { return next_image_id_; }

 private:
  void PutImage(ImageRecord record, size_t encoded_bytes);
  void DeleteImage(uint64_t id);
  void DeleteDead(uint64_t pack_id);

  const uint64_t owner_;  // see CowMap
  CowMap<uint64_t, Image> images_;
  CowMap<std::string, uint64_t> references_;
  CowMap<DigestKey, char> digests_;
  CowMap<uint64_t, PackRecord> packs_;
  CowMap<uint64_t, Dead> dead_;
  CowMap<uint64_t, IndexRecord> indexes_;
  uint64_t next_image_id_ = 1;
  uint64_t described_bytes_ = 0;
};

}  // namespace rekindle::store
